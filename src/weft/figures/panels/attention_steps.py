"""One attention output step by step: each with its formula, the actual numbers and the part that computed them."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from weft.figures.canvas import COLORS, GRAY, drawable_text
from weft.figures.panels.panel import Panel, Sheet, token_label
from weft.figures.panels.tables import format_number
from weft.figures.web.array_encoding import encode_array
from weft.foundation.arrays import Array
from weft.foundation.errors import WeftError
from weft.foundation.spec import Tree

LINE = 0.2  # inches
MOST_ROWS, MOST_COLUMNS = 12, 8
LETTERS = 116


@dataclass(frozen=True)
class AttentionStep:
    """A step: its name, formula, the part that computed it, and its numbers [rows, columns] with their labels."""

    name: str
    formula: str
    part: str
    values: Array
    rows: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    words: str = ""

    def __post_init__(self) -> None:
        if self.values.ndim != 2:
            raise WeftError(f"numbers of step {self.name!r} have {self.values.ndim} axes: give rows and columns")
        for labels, size in ((self.rows, self.values.shape[0]), (self.columns, self.values.shape[1])):
            if labels and len(labels) != size:
                raise WeftError(f"{len(labels)} labels for {size} numbers of step {self.name!r}: give one each")


@dataclass(frozen=True)
class AttentionStepsPanel(Panel):
    """Steps in order, from projections to the output."""

    title: str
    steps: tuple[AttentionStep, ...]
    note: str = ""

    kind = "attention_steps"

    def payload(self) -> Tree:
        return {
            "steps": [
                {
                    "name": step.name,
                    "formula": step.formula,
                    "part": step.part,
                    "words": step.words,
                    "values": encode_array(step.values),
                    "rows": list(step.rows),
                    "columns": list(step.columns),
                }
                for step in self.steps
            ]
        }

    def lines(self) -> list[tuple[str, str]]:
        """(style, text) per line of the still, or of a terminal."""
        found: list[tuple[str, str]] = []
        for place, step in enumerate(self.steps, 1):
            found.append(("name", f"{place}. {step.name}"))
            found.append(("formula", step.formula))
            if step.words:
                found += [("words", line) for line in textwrap.wrap(step.words, LETTERS)]
            found += [("numbers", line) for line in value_lines(step)]
            found.append(("part", f"computed by {step.part}"))
            found.append(("gap", ""))
        return found

    def height(self) -> float:
        return LINE * len(self.lines()) + 0.1

    def draw(self, sheet: Sheet) -> None:
        styles: dict[str, Any] = {
            "name": {"fontsize": 10, "weight": "bold"},
            "formula": {"fontsize": 9.5, "color": COLORS[0]},
            "words": {"fontsize": 9},
            "numbers": {"fontsize": 7.6, "family": "DejaVu Sans Mono"},
            "part": {"fontsize": 8, "color": GRAY},
            "gap": {},
        }
        for place, (style, text) in enumerate(self.lines()):
            indent = 0 if style == "name" else 0.2
            sheet.text(indent, 0.05 + place * LINE, drawable_text(text), **styles[style])


def value_lines(step: AttentionStep) -> list[str]:
    """A small table of the step's values; of long ones the first, and the number of those left out."""
    values = np.asarray(step.values)
    R, C = min(values.shape[0], MOST_ROWS), min(values.shape[1], MOST_COLUMNS)
    rows = [token_label(label, 14) for label in step.rows[:R]]
    cells = [[format_number(float(value)) for value in row[:C]] for row in values[:R]]
    head = [token_label(label, 9) for label in step.columns[:C]]
    wide = max([len(cell) for row in cells for cell in row] + [len(label) for label in head] + [5])
    side = max((len(label) for label in rows), default=0)
    more = f" … {values.shape[1] - C} more" if values.shape[1] > C else ""
    found = []
    if head:
        found.append(" " * side + "  " + " ".join(label.rjust(wide) for label in head))
    for place, row in enumerate(cells):
        label = rows[place] if rows else ""
        found.append(label.ljust(side) + "  " + " ".join(cell.rjust(wide) for cell in row) + more)
    if values.shape[0] > R:
        found.append(f"… {values.shape[0] - R} more rows")
    return found


def steps_text(steps: Sequence[AttentionStep]) -> str:
    """All steps for a terminal."""
    panel = AttentionStepsPanel("", tuple(steps))
    return "\n".join(text if style == "name" else f"   {text}" for style, text in panel.lines()).rstrip()
