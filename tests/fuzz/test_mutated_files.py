"""Every reader with mutated files: no crash, no traceback, no hang, no more memory than a gigabyte, no silent loss."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from file_readers import READERS

pytestmark = pytest.mark.fuzz
SECONDS = float(os.environ.get("WEFT_FUZZ_SECONDS", "9"))
SEED = int(os.environ.get("WEFT_FUZZ_SEED", "0"))
MOST = int(os.environ.get("WEFT_FUZZ_INPUTS", "20000"))
FUZZER = Path(__file__).with_name("fuzzer.py")


def fuzz(name: str, folder: Path, seconds: float, most: int) -> dict:
    """What the fuzzer found, in a process of its own."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([*filter(None, sys.path)]), "WEFT_CACHE": str(folder)}
    command = [sys.executable, str(FUZZER), name, str(seconds), str(SEED), str(most)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=seconds + 300)
    assert done.returncode == 0, (done.returncode, done.stderr[-3000:])
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("name", [reader.name for reader in READERS])
def test_reader(name, tmp_path):
    found = fuzz(name, tmp_path, SECONDS, MOST)
    total = found["inputs"] + found["flipped"]
    print(
        f"\n{name}: {total:,} inputs; {found['accepted']:,} of {found['inputs']:,} mutated "
        f"files read; {found['refused']:,} of {found['flipped']:,} flipped bits refused, the others without effect; "
        f"{found['lines']} of {found['of']} lines"
    )
    assert found["failures"] == [], "\n\n".join(found["failures"])
    assert found["inputs"] > 10


@pytest.mark.parametrize(
    ("name", "words"),
    [("careless", "KeyError"), ("greedy", "MemoryError"), ("endless", "Hang"), ("deaf", "silently accepted")],
)
def test_the_test_would_notice(name, words, tmp_path):
    """Readers that fail in each of the ways."""
    found = fuzz(name, tmp_path, 20, 3_000)
    assert len(found["failures"]) == 1 and words in found["failures"][0], found
