"""Freed memory is used again instead of going back to the kernel, unless the environment says otherwise."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from weft.foundation.kept_memory import SETTINGS, keep_freed_memory

COUNT = """
import json, resource, sys
from weft.foundation.kept_memory import keep_freed_memory
kept = keep_freed_memory() if sys.argv[1] == "keep" else False
def use():
    return [bytearray(b"x") * (7 << 20) for _ in range(11)]
use()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
use()
print(json.dumps([kept, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before]))
"""


def count(mode, **settings):
    """(whether memory is kept, page faults of using 77 MB for the second time)."""
    environment = {name: value for name, value in os.environ.items() if name not in SETTINGS} | settings
    found = subprocess.run([sys.executable, "-c", COUNT, mode], env=environment, capture_output=True, check=True)
    return json.loads(found.stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="glibc")
def test_kept_memory_takes_no_page_faults():
    kept, faults = count("keep")
    if not kept:
        pytest.skip("not glibc")
    assert faults < 100 < 1000 < count("leave")[1]


def test_the_environment_decides_first(monkeypatch):
    monkeypatch.setenv("MALLOC_MMAP_THRESHOLD_", "65536")
    assert not keep_freed_memory()
