"""Writes the file list of docs/ARCHITECTURE.md from the files' docstrings; `--check` only compares."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "weft"
TARGET = ROOT / "docs" / "ARCHITECTURE.md"
BEGIN, END = "<!-- files: written by `make docs` -->", "<!-- end of files -->"
ROOMS = (
    *("foundation", "figures", "parts", "models", "foreign", "data", "checkpoints", "laws"),
    *("inference", "tasks", "runs", "training", "inspection", "reports", "bench", "serving", "lessons", "cli"),
)


def first_line(path: Path) -> str:
    """The first line of a file's docstring, without its full stop."""
    doc = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    if not doc:
        raise SystemExit(f"{path.relative_to(ROOT)} has no docstring: say in one line what it holds")
    return " ".join(doc.split("\n\n")[0].split()).rstrip(".:")


def first_comment(path: Path) -> str:
    """The first line of the comment at the head of a file in C, JavaScript or CSS."""
    line = path.read_text(encoding="utf-8").split("\n", 1)[0]
    if not line.startswith(("//", "/*")):
        raise SystemExit(f"{path.relative_to(ROOT)} begins without a comment: say in one line what it holds")
    return line.strip("/* ").rstrip(".:")


def folder_lines(folder: Path, depth: int = 0) -> Iterator[str]:
    """A line per file, folders with theirs below."""
    pad = "  " * depth
    for path in sorted(folder.iterdir()):
        if path.suffix == ".py" and path.name != "__init__.py":
            yield f"{pad}- `{path.name}`: {first_line(path)}"
        elif path.suffix in (".c", ".js", ".css"):
            yield f"{pad}- `{path.name}`: {first_comment(path)}"
    for inner in sorted(path for path in folder.iterdir() if path.is_dir() and path.name != "__pycache__"):
        own = inner / "__init__.py"
        yield f"{pad}- `{inner.name}/`: {first_line(own) if own.is_file() else 'scripts and styles of the pages'}"
        yield from folder_lines(inner, depth + 1)


def page(text: str) -> str:
    """The page with its file list written anew."""
    known = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").is_file()}
    if known != set(ROOMS):
        raise SystemExit(f"the rooms are {', '.join(sorted(known))}: bring ROOMS in docs/architecture.py up to date")
    lines = []
    for room in ROOMS:
        lines += [f"### `{room}`", "", f"{first_line(PACKAGE / room / '__init__.py')}.", ""]
        lines += [*folder_lines(PACKAGE / room), ""]
    if BEGIN not in text or END not in text:
        raise SystemExit(f"docs/ARCHITECTURE.md has lost its marks {BEGIN} and {END}")
    listed = "\n".join([BEGIN, "", *lines, END])
    return re.sub(f"{re.escape(BEGIN)}.*?{re.escape(END)}", lambda _: listed, text, flags=re.S)


if __name__ == "__main__":
    before = TARGET.read_text(encoding="utf-8")
    after = page(before)
    if "--check" in sys.argv:
        if after != before:
            raise SystemExit("docs/ARCHITECTURE.md does not list the files as they are: run `make docs`")
    else:
        TARGET.write_text(after, encoding="utf-8")
        print(f"wrote {TARGET.name}: {len(after.splitlines())} lines")
