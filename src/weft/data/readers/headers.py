"""Headers by evidence: whether the first row of a table names its columns, judged by how it differs from those below.

A column speaks for a header where its first cell is a word above numbers, where all its other values come again and
again and the first does not, or where the first lacks what all others have (a space, a digit, a length). It speaks
against one where the first cell is a number, a sentence, or among the values below.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

Header = Literal["auto", "yes", "no"]

JUDGED_ROWS = 1000  # by which the first one is judged
FEW_ROWS = 4  # values that repeat in fewer rows say nothing
MANY_ROWS = 10  # below, that all have a space or a digit may be chance
RARE = 0.02  # share of values that may occur once in a column whose values repeat
LONGEST_NAME, MOST_WORDS = 40, 4  # of a column
LONGER = 2  # times as long as the first cell all others are, if that is to say something
# What the first row is taken for where it differs in nothing.
USUAL_NAMES = frozenset({"text", "sentence", "document", "content", "label", "class", "sentiment", "source", "target"})


@dataclass(frozen=True)
class HeaderJudgment:
    """Whether the first row is a header, why in words, and whether anything but its words tells."""

    is_header: bool
    reason: str
    certain: bool = True


def judge_header(rows: Sequence[Sequence[str]]) -> HeaderJudgment:
    """Judge the first of some rows of equal width by the others."""
    first = [cell.strip() for cell in rows[0]]
    below = [[row[place].strip() for row in rows[1:]] for place in range(len(first))]
    for name, cells in zip(first, below, strict=True):
        filled = [cell for cell in cells if cell]
        if filled and name and not is_number(name) and all(map(is_number, filled)):
            return HeaderJudgment(True, f"{name!r:.60} stands above numbers")
    against = _unlike_names(first) or next(
        (f"{name!r:.60} is a value of its column" for name, cells in zip(first, below, strict=True) if name in cells),
        "",
    )
    if against:
        return HeaderJudgment(False, against)
    for name, cells in zip(first, below, strict=True):
        found = _difference(name, [cell for cell in cells if cell])
        if found:
            return HeaderJudgment(True, found)
    usual = all(name.lower() in USUAL_NAMES for name in first)
    return HeaderJudgment(usual, "its words are usual names" if usual else "it is like the others", certain=False)


def _unlike_names(first: Sequence[str]) -> str:
    """Why a row cannot be names of columns; a table's first column may have none, as of row numbers."""
    for place, cell in enumerate(first):
        if not cell and place:
            return "a cell is empty"
        if is_number(cell):
            return f"{cell!r:.60} is a number"
        if len(cell) > LONGEST_NAME or len(cell.split()) > MOST_WORDS or cell.endswith((".", "!", "?")):
            return f"{cell!r:.60} is a sentence"
    twice = next((cell for cell, count in Counter(first).items() if count > 1), None)
    return "" if twice is None else f"{twice!r:.60} is there twice"


def _difference(name: str, cells: Sequence[str]) -> str:
    """How a first cell differs from all others of its column, if it does."""
    counts = Counter(cells)
    single = sum(count == 1 for count in counts.values())
    if name and len(cells) >= FEW_ROWS and single <= RARE * len(cells):
        return f"{name!r:.60} stands above values that repeat ({', '.join(sorted(counts)[:3])})"
    if not name or len(cells) < MANY_ROWS:
        return ""
    kinds: tuple[tuple[str, Callable[[str], object]], ...] = (
        ("texts of several words", lambda cell: " " in cell),
        ("values with digits", lambda cell: re.search(r"\d", cell)),
        ("longer texts", lambda cell: len(cell) > LONGER * len(name)),
    )
    found = next((words for words, has in kinds if not has(name) and all(map(has, cells))), None)
    return "" if found is None else f"{name!r:.60} stands above {found}"


def is_number(cell: str) -> bool:
    """Whether a cell is a finite number."""
    try:
        return math.isfinite(float(cell))
    except ValueError:
        return False
