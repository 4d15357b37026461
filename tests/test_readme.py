"""Every block of the README runs."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
COMMANDS = [line[2:] for block in re.findall(r"```console\n(.*?)```", TEXT, re.S) for line in block.splitlines()]


def test_python_blocks_run(capsys):
    names: dict = {}
    for block in re.findall(r"```python\n(.*?)```", TEXT, re.S):
        exec(compile(block, "README.md", "exec"), names)
    shown = re.search(r"```\n(causal & window\(3\).*?)```", TEXT, re.S)
    assert shown.group(1) in capsys.readouterr().out


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_run(command):
    program, *arguments = shlex.split(command)
    assert program == "weft"
    out = subprocess.run([sys.executable, "-m", "weft", *arguments], capture_output=True, text=True)
    assert out.returncode == 0, out.stderr
    assert out.stdout


def test_the_parts_page_matches_the_docstrings():
    out = subprocess.run([sys.executable, ROOT / "docs" / "parts.py", "--check"], capture_output=True, text=True)
    assert out.returncode == 0, out.stderr


def test_links_lead_somewhere():
    for target in re.findall(r"\]\(([^)#]+)\)", TEXT):
        assert (ROOT / target).exists(), target
