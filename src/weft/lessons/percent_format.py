"""Percent format: one lesson as a Python file of cells, `# %%` for code, `# %% [markdown]` for text in comments."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

from weft.foundation.errors import WeftError

MARK = "# %%"
FILE_NAME = re.compile(r"(\d\d)_[a-z][a-z0-9_]*\.py")


@dataclass(frozen=True)
class Cell:
    """`kind` is code or markdown; `line` is that of its mark."""

    kind: str
    text: str
    line: int


def read_cells(text: str, name: str = "lesson") -> list[Cell]:
    """The cells of a lesson; what stands before the first mark must be empty."""
    found: list[tuple[str, int, list[str]]] = []
    for number, line in enumerate(text.splitlines(), start=1):
        if line.startswith(MARK):
            rest = line.removeprefix(MARK).strip()
            if rest not in ("", "[markdown]"):
                raise WeftError(f"{name}, line {number}: {line!r} is no mark: write '# %%' or '# %% [markdown]'")
            found.append(("markdown" if rest else "code", number, []))
        elif found:
            found[-1][2].append(_uncommented(line, name, number) if found[-1][0] == "markdown" else line)
        elif line.strip():
            raise WeftError(f"{name}, line {number}: text before the first mark: begin with '# %% [markdown]'")
    cells = [Cell(kind, "\n".join(lines).strip("\n"), line) for kind, line, lines in found]
    return [cell for cell in cells if cell.text.strip()]


def _uncommented(line: str, name: str, number: int) -> str:
    if not line.strip():
        return ""
    if not line.startswith("#"):
        raise WeftError(f"{name}, line {number}: code in a cell of text: begin the line with '#', or add a '# %%'")
    return line.removeprefix("#").removeprefix(" ")


def digest(path: Path) -> str:
    """The SHA-256 of a lesson's source, which stored outputs carry."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def lesson_files(folder: Path) -> list[Path]:
    """The lessons of a folder, by number."""
    return sorted(path for path in folder.glob("*.py") if FILE_NAME.fullmatch(path.name))


def lesson_title(cells: list[Cell]) -> str:
    """The first heading, such as `1. Sequences`."""
    return next((line[2:] for cell in cells for line in cell.text.splitlines() if line.startswith("# ")), "")
