"""docs/ARCHITECTURE.md: a line per file, and the ways of the data as they are."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def call(script, *words):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, ROOT / "docs" / script, *words], capture_output=True, text=True, env=environment
    )


def test_every_file_has_its_line():
    page = (ROOT / "docs" / "ARCHITECTURE.md").read_text(encoding="utf-8")
    for path in (ROOT / "src" / "weft").rglob("*.*"):
        if path.suffix in (".py", ".c", ".js", ".css") and path.name not in ("__init__.py", "__main__.py"):
            assert f"- `{path.name}`: " in page, path
    out = call("architecture.py", "--check")
    assert out.returncode == 0, out.stderr


def test_the_ways_of_the_data_are_short_and_as_told():
    out = call("data_paths.py", "--check")
    assert out.returncode == 0, out.stdout + out.stderr
