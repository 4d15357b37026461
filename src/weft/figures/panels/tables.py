"""Tables of values as heat maps, with numbers or words in the cells: alignments, logit lens, routing, statistics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from weft.figures.canvas import GRAY
from weft.figures.palette import COLOR_STOPS, ColorScale, color_map
from weft.figures.panels.panel import WIDTH, Axis, Panel, Sheet, expect_shape, label_ticks, token_label
from weft.figures.web.array_encoding import encode_array
from weft.foundation.arrays import Array
from weft.foundation.spec import Tree

if TYPE_CHECKING:
    from matplotlib.axes import Axes

CELL = 0.32  # inches
WORD = 0.74  # inches of a cell that shows a word or a number
LOW = 0.24
LARGEST = 8.5
LETTER = 0.085


@dataclass(frozen=True)
class TablePanel(Panel):
    """Values [choices ..., rows, columns]; cells show `words`, or by `cells` their numbers or colors only.

    `gold` marks the right cells, where known. `row_name` and `column_name` say what rows and columns are.
    """

    title: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    values: Array
    choices: tuple[Axis, ...] = ()
    words: tuple[tuple[str, ...], ...] | None = None
    cells: Literal["colors", "numbers"] = "numbers"
    scale: ColorScale = "share"
    row_name: str = ""
    column_name: str = ""
    gold: Array | None = None
    note: str = ""

    kind = "table"

    def __post_init__(self) -> None:
        sizes = (*(len(axis.options) for axis in self.choices), len(self.rows), len(self.columns))
        expect_shape(f"the table {self.title!r}", self.values, *sizes)
        if self.words is not None:
            expect_shape("the table's words", np.array(self.words, dtype=object), len(self.rows), len(self.columns))
        if self.gold is not None:
            expect_shape("the table's gold", self.gold, len(self.rows), len(self.columns))

    def axes(self) -> tuple[Axis, ...]:
        return self.choices

    def chosen(self) -> Array:
        """The values shown first, [rows, columns]."""
        return self.values[tuple(axis.chosen for axis in self.choices)]

    def payload(self) -> Tree:
        return {
            "rows": list(self.rows),
            "columns": list(self.columns),
            "values": encode_array(self.values),
            "words": None if self.words is None else [list(row) for row in self.words],
            "cells": self.cells,
            "scale": self.scale,
            "row_name": self.row_name,
            "column_name": self.column_name,
            "gold": None if self.gold is None else encode_array(self.gold, "u1"),
        }

    # --- the still ---------------------------------------------------------------------------------------------------

    def _cells(self) -> tuple[float, float]:
        """Width and height of a cell in inches."""
        R, C = len(self.rows), len(self.columns)
        if self._written():
            return min(WORD, (WIDTH - self._left()) / C), LOW
        side = min(CELL, (WIDTH - self._left() - 0.6) / C, LARGEST / R)
        return side, side

    def _left(self) -> float:
        return min(1.9, 0.2 + LETTER * max(len(token_label(row)) for row in self.rows)) + (0.25 if self.row_name else 0)

    def _top(self) -> float:
        letters = max(len(token_label(column)) for column in self.columns)
        short = self._flat() or self._cells()[0] < 0.106
        return (0.28 if short else 0.15 + LETTER * letters) + (0.22 if self.column_name else 0)

    def _flat(self) -> bool:
        """Whether the column labels fit without being rotated."""
        return max(len(token_label(column)) for column in self.columns) * LETTER * 1.15 <= self._cells()[0]

    def _written(self) -> bool:
        """Whether cells are wide enough for their text."""
        if self.words is None and self.cells == "colors":
            return False
        return (WIDTH - self._left()) / len(self.columns) >= 0.45

    def height(self) -> float:
        return self._top() + self._cells()[1] * len(self.rows) + 0.25

    def draw(self, sheet: Sheet) -> None:
        values = self.chosen()
        width, height = self._cells()
        R, C = values.shape
        axes = sheet.axes(self._left(), self._top(), width * C, height * R)
        low, high = value_range(values, self.scale)
        box = (-0.5, C - 0.5, R - 0.5, -0.5)
        colors = color_map(self.scale)
        image = axes.imshow(values, cmap=colors, vmin=low, vmax=high, aspect="auto", extent=box)
        axes.spines[:].set_visible(True)
        axes.spines[:].set_color("0.8")
        label_ticks(axes, self.rows, "y", min(height, 0.2))
        label_ticks(axes, self.columns, "x", min(width, 0.2), not self._flat())
        if self.column_name:
            axes.set_xlabel(self.column_name, fontsize=8.5, color=GRAY, labelpad=4)
            axes.xaxis.set_label_position("top")
        if self.row_name:
            axes.set_ylabel(self.row_name, fontsize=8.5, color=GRAY, labelpad=4)
        if self._written():
            self._write(axes, values, (low, high), width)
        else:
            bar = sheet.axes(self._left() + width * C + 0.12, self._top(), 0.12, min(1.4, height * R))
            sheet.box.colorbar(image, cax=bar)
            bar.tick_params(labelsize=7.5, colors=GRAY)
            bar.spines[:].set_visible(False)
        if self.gold is not None:
            _mark(axes, self.gold)

    def _write(self, axes: Axes, values: Array, limits: tuple[float, float], width: float) -> None:
        low, high = limits
        most = max(2, int(width / (LETTER * 0.9)))
        for (row, column), value in np.ndenumerate(values):
            text = format_number(float(value)) if self.words is None else token_label(self.words[row][column], most)
            share = 0.5 if high == low else (float(value) - low) / (high - low)
            ink = "white" if is_dark(share, self.scale) else "black"
            axes.text(column, row, text, ha="center", va="center", fontsize=7.5, color=ink)


def value_range(values: Array, scale: ColorScale) -> tuple[float, float]:
    """The values of the lowest and the highest color."""
    finite = values[np.isfinite(values)]
    top = float(np.abs(finite).max()) if finite.size else 1.0
    top = top or 1.0
    return (0.0 if scale == "share" else -top), top


def is_dark(share: float, scale: ColorScale) -> bool:
    """Whether text on the color at this position of the scale, from 0 to 1, must be white."""
    stops = COLOR_STOPS[scale]["light"]
    if not np.isfinite(share):
        return False
    place = min(len(stops) - 1, max(0, round(share * (len(stops) - 1))))
    red, green, blue = (int(stops[place][at : at + 2], 16) for at in (1, 3, 5))
    return 0.299 * red + 0.587 * green + 0.114 * blue < 140


def format_number(value: float) -> str:
    """A number in few digits: 0.85, 12.3, 1.2e+05."""
    if value == 0 or 0.01 <= abs(value) < 10:
        return f"{value:.2f}"
    return f"{value:.3g}"


def _mark(axes: Axes, gold: Array) -> None:
    rows, columns = np.nonzero(gold)
    axes.scatter(columns, rows, s=14, facecolors="none", edgecolors="#bc4c00", linewidths=1.1, zorder=3)
