"""Each how-to page, page of the guide and page for contributors is followed in an empty folder: every block runs.

Trainings are cut to two steps of a small model; all else is as printed.
"""

from __future__ import annotations

import importlib
import subprocess
import sys
import tomllib
from pathlib import Path

import matplotlib.pyplot as plt
import pytest

from plugins import write_distribution
from weft.cli.main import app

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
sys.path.insert(0, str(DOCS))
from blocks import follow, steps  # noqa: E402

HOWTO = [page for page in sorted((DOCS / "howto").glob("*.md")) if page.stem != "index"]
OTHERS = [
    *sorted((DOCS / "guide").glob("*.md")),
    DOCS / "MANY_MACHINES.md",
    *sorted((DOCS / "contribute").glob("first-*.md")),
]
SMALL = ("training.guard=false", "training.threads=1", "training.race=false")


def quick(words: list[str]) -> list[str]:
    """A training of two steps; the rest as it is."""
    for option in ("--minutes", "--steps"):
        if words[0] == "train" and option in words:
            place = words.index(option)
            words = [*words[:place], "--steps", "2", *words[place + 2 :]]
            return [*words, *(word for setting in SMALL for word in ("--set", setting))]
    return words


def call(words: list[str]) -> None:
    """One command, in this process unless it starts several."""
    program, *words = words
    if program == "pip":
        install(Path("pyproject.toml"))
    elif program == "pytest":
        run_tests(Path(words[-1]))
    elif "--processes" in words:
        done = subprocess.run(
            [sys.executable, "-m", program, *quick(words)], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
    else:
        assert program == "weft"
        with pytest.raises(SystemExit) as stopped:
            app(quick(words), prog_name="weft")
        assert not stopped.value.code, words


def install(project: Path) -> None:
    """What `pip install -e .` leaves: the package can be imported, and its entry points are known."""
    tree = tomllib.loads(project.read_text(encoding="utf-8"))
    for module in tree["tool"]["setuptools"]["py-modules"]:
        assert Path(f"{module}.py").is_file()
    write_distribution(Path.cwd(), tree["project"]["name"], {}, {
        group: {f"{name}": target for name, target in points.items()}
        for group, points in tree["project"]["entry-points"].items()
    })  # fmt: skip


def run_tests(file: Path) -> None:
    """The tests of a page, which take no fixtures."""
    tests = [value for name, value in vars(importlib.import_module(file.stem)).items() if name.startswith("test_")]
    assert tests
    for test in tests:
        test()


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty folder to be in; samples are small."""
    from weft.data import samples

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path / "cache"))
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "book.txt").write_text("Once upon a time there was a loom, and it wove all day.\n" * 100)
    before = set(sys.modules)
    few = {
        task: {
            name: (make, 60_000 if task == "text" else 2_000 if task == "forecast" else 120)
            for name, (make, _) in kinds.items()
        }
        for task, kinds in samples.SAMPLES.items()
    }
    monkeypatch.setattr(samples, "SAMPLES", few)
    yield tmp_path
    plt.close("all")
    for name in set(sys.modules) - before:
        if (tmp_path / f"{name}.py").is_file():
            del sys.modules[name]


@pytest.mark.filterwarnings("ignore")  # of other libraries: users see them, too
@pytest.mark.parametrize("page", [*HOWTO, *OTHERS], ids=lambda page: page.relative_to(DOCS).as_posix())
def test_the_page_can_be_followed(page, folder, capsys):
    follow(page, call)
    if page in HOWTO:
        assert (folder / f"{page.stem}.png").stat().st_size > 1000
    if page.stem == "parts":
        shown = page.read_text(encoding="utf-8").partition("```\ncausal")[2].partition("```")[0]
        assert shown in capsys.readouterr().out


def test_blocks_are_found(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("a\n```python\nx = 1\n```\n```console\n$ weft show\nprinted\n$ weft laws\n```\n    weft not run\n")
    assert list(steps(page)) == [("python", "x = 1\n"), ("command", "weft show"), ("command", "weft laws")]
