"""Records: a table of words and numbers, such as a plan beside what happened, or the worst errors."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass

from weft.figures.canvas import COLORS, GRAY, drawable_text
from weft.figures.panels.panel import WIDTH, Panel, Sheet
from weft.foundation.errors import WeftError
from weft.foundation.spec import Tree

LINE = 0.17  # inches
LETTERS = 150  # of a whole row in a still
LEAST = 6  # letters of a column


@dataclass(frozen=True)
class RecordsPanel(Panel):
    """Rows of texts under a `head`; the numbers in `marked` are of rows that stand out."""

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    marked: tuple[int, ...] = ()
    note: str = ""

    kind = "records"

    def __post_init__(self) -> None:
        odd = next((row for row in self.rows if len(row) != len(self.head)), None)
        if odd is not None:
            raise WeftError(f"a record of {len(odd)} cells under a head of {len(self.head)}: give one cell per column")

    def payload(self) -> Tree:
        return {"head": list(self.head), "rows": [list(row) for row in self.rows], "marked": list(self.marked)}

    def _widths(self) -> list[int]:
        """Letters of each column: as many as its longest cell, or its share of what fits."""
        longest = [max(LEAST, *(len(row[place]) for row in (self.head, *self.rows))) for place in range(len(self.head))]
        while sum(longest) > LETTERS and max(longest) > LEAST:
            longest[longest.index(max(longest))] -= 1
        return longest

    def _lines(self) -> list[list[list[str]]]:
        """Of each row, the head first, the lines of each cell."""
        widths = self._widths()
        return [
            [textwrap.wrap(drawable_text(cell), width) or [""] for cell, width in zip(row, widths, strict=True)]
            for row in (self.head, *self.rows)
        ]

    def height(self) -> float:
        return LINE * sum(max(map(len, row)) for row in self._lines()) + 0.1

    def draw(self, sheet: Sheet) -> None:
        widths, down = self._widths(), 0.0
        for number, row in enumerate(self._lines()):
            left = 0.0
            color = GRAY if not number else COLORS[1] if number - 1 in self.marked else "black"
            for cell, width in zip(row, widths, strict=True):
                sheet.text(left, down, "\n".join(cell), fontsize=7.5, color=color, linespacing=1.25)
                left += (WIDTH - 0.1) * width / max(LETTERS, sum(widths))
            down += LINE * max(map(len, row))
