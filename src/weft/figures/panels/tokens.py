"""Tokens colored by the attention they receive, as running text, with what the model says of each below."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING

import numpy as np

from weft.figures.canvas import GRAY
from weft.figures.palette import ColorScale, color_map, to_colors
from weft.figures.panels.panel import WIDTH, Axis, Panel, Sheet, draw_thumbnail, expect_shape, token_label
from weft.figures.panels.tables import is_dark, value_range
from weft.figures.web.array_encoding import encode_array
from weft.foundation.arrays import Array
from weft.foundation.spec import Tree

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LETTER = 0.098  # inches, about, per letter at 11 points
LINE = 0.34
BELOW = 0.2
MOST_LINES = 40
SMALL_LINES = 12  # choices that a still shows besides the chosen one


@dataclass(frozen=True)
class TokensPanel(Panel):
    """`weights` [choices ..., T] color the tokens; `below` says something of each (a tag, a share)."""

    title: str
    tokens: tuple[str, ...]
    weights: Array
    choices: tuple[Axis, ...] = ()
    below: tuple[str, ...] = ()
    scale: ColorScale = "share"
    note: str = ""

    kind = "tokens"

    def __post_init__(self) -> None:
        sizes = (len(axis.options) for axis in self.choices)
        expect_shape("weights of tokens", self.weights, *sizes, len(self.tokens))
        if self.below:
            expect_shape("words below tokens", np.array(self.below, dtype=object), len(self.tokens))

    def axes(self) -> tuple[Axis, ...]:
        return self.choices

    def payload(self) -> Tree:
        return {
            "tokens": list(self.tokens),
            "weights": encode_array(self.weights),
            "below": list(self.below),
            "scale": self.scale,
        }

    # --- the still ---------------------------------------------------------------------------------------------------

    def _lines(self) -> list[list[tuple[int, float, float]]]:
        """Lines of (token, left, width) in inches, broken where they are full."""
        lines: list[list[tuple[int, float, float]]] = [[]]
        x = 0.0
        for number, token in enumerate(self.tokens):
            letters = float(len(token_label(token)))
            if self.below:
                letters = max(letters, 0.8 * len(token_label(self.below[number])))
            width = 0.1 + LETTER * letters
            if x + width > WIDTH and lines[-1]:
                lines.append([])
                x = 0.0
            lines[-1].append((number, x, width))
            x += width + 0.04
        return lines[:MOST_LINES]

    def _pitch(self) -> float:
        return LINE + (BELOW if self.below else 0)

    def _others(self) -> list[tuple[int, ...]]:
        """Choices that are drawn small below; none for a long text."""
        if len(self._lines()) > 2:
            return []
        every = list(product(*(range(len(axis.options)) for axis in self.choices)))
        return every[:SMALL_LINES] if len(every) > 1 else []

    def height(self) -> float:
        strips = 0.19 * len(self._others())
        return self._pitch() * len(self._lines()) + (strips + 0.3 if strips else 0) + 0.1

    def draw(self, sheet: Sheet) -> None:
        """Tokens in boxes of their color; one strip per other choice below."""
        axes = sheet.board()
        chosen = self.weights[tuple(axis.chosen for axis in self.choices)]
        lines = self._lines()
        for line, boxes in enumerate(lines):
            for number, x, width in boxes:
                self._box(axes, chosen, number, (x, line * self._pitch(), width))
        top = self._pitch() * len(lines) + 0.25
        for strip, choice in enumerate(self._others()):
            names = (axis.named(place) for axis, place in zip(self.choices, choice, strict=True))
            values = self.weights[choice][None]
            pixels = to_colors(values, value_range(values, self.scale), self.scale)
            draw_thumbnail(axes, pixels, (1.6, top + 0.19 * strip, WIDTH - 1.6, 0.15), "0.85", 0.8)
            sheet.text(0, top + 0.19 * strip, ", ".join(names), fontsize=8, color=GRAY)

    def _box(self, axes: Axes, weights: Array, number: int, place: tuple[float, float, float]) -> None:
        from matplotlib.patches import Rectangle

        x, y, width = place
        low, high = value_range(weights, self.scale)
        share = (float(weights[number]) - low) / (high - low)
        ink = "white" if is_dark(share, self.scale) else "black"
        box = Rectangle((x, y + 0.02), width, 0.26, facecolor=color_map(self.scale)(share), edgecolor="0.85", lw=0.6)
        axes.add_patch(box)
        axes.text(
            x + width / 2, y + 0.15, token_label(self.tokens[number]), ha="center", va="center", fontsize=10, color=ink
        )
        if self.below:
            label = token_label(self.below[number])
            axes.text(x + width / 2, y + 0.38, label, ha="center", va="center", fontsize=7.5, color=GRAY)
