"""The compiled code under AddressSanitizer and UBSan, by each of its ways to multiply blocks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from weft.foundation.native_code import find_compiler

pytestmark = pytest.mark.fuzz
SECONDS = float(os.environ.get("WEFT_FUZZ_SECONDS", "9"))
SEED = int(os.environ.get("WEFT_FUZZ_SEED", "0"))
PROGRAM = Path(__file__).with_name("sanitized.py")


def sanitizer() -> str | None:
    """Where the compiler's libasan is."""
    compiler = find_compiler()
    if compiler is None:
        return None
    told = subprocess.run([compiler, "-print-file-name=libasan.so"], capture_output=True, text=True, check=False)
    found = told.stdout.strip()
    return found if os.path.isabs(found) and os.path.exists(found) else None


needs_sanitizer = pytest.mark.skipif(sanitizer() is None, reason="there is no C compiler with AddressSanitizer here")


def call(cache: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([*filter(None, sys.path)]),
        "LD_PRELOAD": os.path.realpath(str(sanitizer())),
        "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=0:exitcode=99",
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "WEFT_CACHE": str(cache),
    }
    command = [sys.executable, str(PROGRAM), str(SECONDS), str(SEED), *words]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=900)


@needs_sanitizer
@pytest.mark.parametrize("way", ["", "-DWEFT_AVX2", "-DWEFT_PORTABLE"], ids=["own", "avx2", "portable"])
def test_random_shapes(way, tmp_path):
    done = call(tmp_path, *filter(None, [way]))
    assert done.returncode == 0, done.stderr[-6000:]
    counts = json.loads(done.stdout.splitlines()[-1])
    print(f"\nnative code {way}: {', '.join(f'{count} x {name}' for name, count in counts.items())}")
    assert all(counts.values())


@needs_sanitizer
def test_the_test_would_notice(tmp_path):
    done = call(tmp_path, "overstep")
    assert done.returncode == 99 and "heap-buffer-overflow" in done.stderr, done.stderr[-3000:]
