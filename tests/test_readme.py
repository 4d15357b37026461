"""Every block of the README runs."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
RUNS = {
    "runs/book": ("text", "book.txt"),
    "runs/pronouns": ("tagging", "sample:pronouns"),
    "runs/llama": ("text", "book.txt", "--preset", "nano-llama"),
}
COMMANDS = [line[2:] for block in re.findall(r"```console\n(.*?)```", TEXT, re.S) for line in block.splitlines()]


def test_python_blocks_run(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path / "cache"))
    names: dict = {}
    for block in re.findall(r"```python\n(.*?)```", TEXT, re.S):
        exec(compile(block, "README.md", "exec"), names)
    shown = re.search(r"```\n(causal & window\(3\).*?)```", TEXT, re.S)
    assert shown.group(1) in capsys.readouterr().out


@pytest.fixture(scope="module")
def desk(tmp_path_factory):
    """A folder with the files that the README speaks of."""
    place = tmp_path_factory.mktemp("desk")
    for name in ("book.txt", "another-book.txt"):
        (place / name).write_text("Once upon a time there was a loom, and it wove all day.\n" * 50)
    return place


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_run(command, desk):
    program, *arguments = shlex.split(command)
    assert program == "weft"
    arguments = [
        "0.1" if before == "--minutes" else word for before, word in zip(["", *arguments], arguments, strict=False)
    ]
    # What a command starts from may have been made on another core.
    if arguments[0] == "import" and not (desk / arguments[1]).exists():
        begin(desk, "runs/llama")
        call(desk, ["export", "runs/llama", "--to", "huggingface", "--out", arguments[1]])
    if arguments[0] not in ("train", "import"):
        for word in RUNS.keys() & set(arguments):
            begin(desk, word)
    if arguments[0] == "train" and (desk / arguments[arguments.index("--out") + 1]).exists():
        arguments[arguments.index("--out") + 1] = "runs/again"
    assert call(desk, arguments)


def begin(desk, run):
    if not (desk / run).exists():
        call(desk, ["train", *RUNS[run], "--out", run, "--steps", "2"])


def call(desk, arguments):
    environment = {**os.environ, "WEFT_CACHE": str(desk / "cache")}
    words = [sys.executable, "-m", "weft", *arguments]
    out = subprocess.run(words, capture_output=True, text=True, cwd=desk, env=environment)
    assert out.returncode == 0, out.stderr
    return out.stdout


def test_the_parts_page_matches_the_docstrings():
    out = subprocess.run([sys.executable, ROOT / "docs" / "parts.py", "--check"], capture_output=True, text=True)
    assert out.returncode == 0, out.stderr


def test_links_lead_somewhere():
    for target in re.findall(r"\]\(([^)#]+)\)", TEXT):
        assert (ROOT / target).exists(), target
