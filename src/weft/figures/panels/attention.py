"""Attention: lines between tokens, the matrix, and small maps of all heads, by layer and head."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from weft.figures.canvas import COLORS, GRAY
from weft.figures.palette import color_map, to_colors
from weft.figures.panels.maps import AttentionMaps
from weft.figures.panels.panel import WIDTH, Axis, Panel, Sheet, draw_thumbnail, label_ticks, token_label
from weft.foundation.arrays import Array
from weft.foundation.errors import WeftError
from weft.foundation.spec import Tree

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_LINES = 48  # tokens whose lines a still draws
LEAST_LINE = 0.02  # weights below are not drawn as lines
FAINT = 0.35  # least strength of the largest line of the row in focus
MATRIX = 4.6  # inches
SMALL = 0.72  # inches of a small map
MOST_SMALL = 12  # rows of small maps
ROOT_FROM = 48  # tokens
LETTER = 0.085  # inches, about, per letter at 9 points


@dataclass(frozen=True)
class AttentionPanel(Panel):
    """Attention `maps` of tokens `rows` (queries) x `columns` (keys); `focus` is the row shown first."""

    title: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    layers: Axis
    heads: Axis
    maps: AttentionMaps
    note: str = ""
    focus: int | None = None

    kind = "attention"

    def __post_init__(self) -> None:
        if self.maps.size != (len(self.rows), len(self.columns)):
            T, S = self.maps.size
            raise WeftError(f"maps of {T} x {S} for {len(self.rows)} x {len(self.columns)} tokens: give a label each")

    def axes(self) -> tuple[Axis, ...]:
        return self.layers, self.heads

    @property
    def itself(self) -> bool:
        """Whether this is self-attention: rows and columns are the same tokens."""
        return self.rows == self.columns

    def choose(self, layer: int | None, head: int | None) -> AttentionPanel:
        """A copy that shows another map first."""
        layers = self.layers if layer is None else replace(self.layers, chosen=layer)
        return replace(self, layers=layers, heads=self.heads if head is None else replace(self.heads, chosen=head))

    def weights(self, row: int) -> Array:
        """The attention weights of one row of the chosen map, [S]."""
        return self.maps.row(self.layers.chosen, self.heads.chosen, row)

    def payload(self) -> Tree:
        """Tokens, maps and the row shown first."""
        tokens = {"rows": list(self.rows)} if self.itself else {"rows": list(self.rows), "columns": list(self.columns)}
        return {**tokens, "maps": self.maps.payload(), "focus": self.focus}

    # --- the still ---------------------------------------------------------------------------------------------------

    def height(self) -> float:
        return max(self._lines_height(), self._matrix_height()) + self._small_height() + 0.25

    def draw(self, sheet: Sheet) -> None:
        """Lines at the left, the matrix at the right, all heads below."""
        top = max(self._lines_height(), self._matrix_height())
        self._draw_lines(sheet)
        self._draw_matrix(sheet)
        if self._small_height():
            self._draw_small(sheet, top + 0.2)

    def _window(self) -> tuple[range, range]:
        """Rows and columns whose lines a still draws: all, or those around the row in focus."""

        def around(count: int, place: int) -> range:
            first = max(0, min(count - MOST_LINES, place - MOST_LINES + 8))
            return range(first, min(count, first + MOST_LINES))

        T, S = self.maps.size
        place = T - 1 if self.focus is None else self.focus
        if self.itself:
            return around(T, place), around(T, place)
        return around(T, place), around(S, int(self.weights(place).argmax()))

    def _lines_height(self) -> float:
        rows, columns = self._window()
        return 0.3 + max(0.19, min(0.24, 8.0 / max(len(rows), len(columns)))) * max(len(rows), len(columns))

    def _draw_lines(self, sheet: Sheet) -> None:
        rows, columns = self._window()
        height = self._lines_height()
        left = _widest(self.rows, rows)
        axes = sheet.axes(left, 0.25, max(0.9, 3.7 - left - _widest(self.columns, columns)), height - 0.3)
        axes.set_axis_off()
        axes.set_xlim(0, 1)
        most = max(len(rows), len(columns))
        axes.set_ylim(most - 0.5, -0.5)
        size = min(9.5, 72 * (height - 0.3) / most * 0.7)
        for place, row in enumerate(rows):
            lit = self.focus is None or row == self.focus
            self._draw_row(axes, place, row, columns, lit)
            strong = "bold" if self.focus == row else "normal"
            axes.text(-0.03, place, token_label(self.rows[row]), ha="right", va="center", fontsize=size, weight=strong)
        looked = None if self.focus is None else self.weights(self.focus)
        for place, column in enumerate(columns):
            bold = looked is not None and looked[column] >= max(0.2, 0.6 * float(looked.max()))
            label = token_label(self.columns[column])
            axes.text(1.03, place, label, ha="left", va="center", fontsize=size, weight="bold" if bold else "normal")
        words = "looks at" if len(rows) == len(self.rows) else f"looks at (tokens {rows.start} to {rows.stop - 1})"
        sheet.text(left, 0.02, words, fontsize=8, color=GRAY)

    def _draw_row(self, axes: Axes, place: int, row: int, columns: range, lit: bool) -> None:
        weights = self.weights(row)
        if row == self.focus and (most := float(weights.max())) > 0:
            # A row in focus whose attention is spread evenly still shows its largest weight.
            weights = weights * max(most, FAINT) / most
        color = COLORS[0] if self.focus is None else (COLORS[1] if lit else "0.6")
        for other, column in enumerate(columns):
            weight = float(weights[column])
            if weight < LEAST_LINE:
                continue
            strength = min(1.0, weight) if lit else 0.25 * min(1.0, weight)
            width = 0.4 + 2.6 * weight
            axes.plot((0, 1), (place, other), color=color, alpha=strength, linewidth=width, solid_capstyle="round")

    def _cell(self) -> float:
        return min(0.3, MATRIX / max(self.maps.size))

    def _matrix_height(self) -> float:
        labels = min(1.6, 0.1 + LETTER * max(len(token_label(token)) for token in self.columns))
        return 0.25 + self._cell() * self.maps.size[0] + (labels if self._cell() > 0.106 else 0.3)

    def _draw_matrix(self, sheet: Sheet) -> None:
        T, S = self.maps.size
        cell = self._cell()
        values = self.maps.picture(self.layers.chosen, self.heads.chosen)
        labeled = cell > 0.106
        left = 4.1 + (_widest(self.rows, range(T)) if labeled else 0.4)
        down = self._matrix_height() - cell * T
        axes = sheet.axes(min(left, WIDTH - cell * S), down, cell * S, cell * T)
        top = float(values.max()) or 1.0
        box = (-0.5, S - 0.5, T - 0.5, -0.5)
        axes.imshow(values, cmap=color_map("share"), vmin=0, vmax=top, aspect="auto", extent=box)
        axes.spines[:].set_visible(True)
        axes.spines[:].set_color("0.8")
        label_ticks(axes, self.columns, "x", cell)
        label_ticks(axes, self.rows, "y", cell)
        if self.focus is not None:
            axes.axhspan(self.focus - 0.5, self.focus + 0.5, fill=False, edgecolor=COLORS[1], linewidth=1.2)

    def _small_height(self) -> float:
        if len(self.layers.options) * len(self.heads.options) < 2:
            return 0.0
        lines = len(self._small_layers()) * self._lines_of_layer()
        return 0.3 + lines * (SMALL + 0.22) + (0.2 if self._not_small() else 0.0)

    def _across(self) -> int:
        return min(len(self.heads.options), int((WIDTH - 0.8) / (SMALL + 0.12)))

    def _lines_of_layer(self) -> int:
        return -(-len(self.heads.options) // self._across())

    def _small_layers(self) -> range:
        """The layers whose maps a still draws small: all, or as many as fit around the chosen one."""
        count = len(self.layers.options)
        most = min(count, max(1, MOST_SMALL // self._lines_of_layer()))
        first = max(0, min(count - most, self.layers.chosen - most // 2))
        return range(first, first + most)

    def _not_small(self) -> str:
        """Which layers are left out of the small maps, in words."""
        names, drawn = self.layers.options, self._small_layers()
        parts = [part for part in (names[: drawn.start], names[drawn.stop :]) if part]
        words = " and ".join(part[0] if len(part) == 1 else f"{part[0]} to {part[-1]}" for part in parts)
        name = self.layers.name if len(names) - len(drawn) == 1 else f"{self.layers.name}s"
        return words and f"Left out of these small maps: {name} {words}."

    def _draw_small(self, sheet: Sheet, top: float) -> None:
        across, board = self._across(), sheet.lower(top).board()
        for number, layer in enumerate(self._small_layers()):
            for head, label in enumerate(self.heads.options):
                line = number * self._lines_of_layer() + head // across
                x, y = 0.8 + head % across * (SMALL + 0.12), 0.2 + line * (SMALL + 0.22)
                values = self.maps.picture(layer, head)
                # A square root makes the small weights of large maps visible.
                values = np.sqrt(values) if max(values.shape) > ROOT_FROM else values
                chosen = (layer, head) == (self.layers.chosen, self.heads.chosen)
                color = COLORS[1] if chosen else GRAY
                pixels = to_colors(values, (0.0, float(values.max())), "share")
                draw_thumbnail(
                    board, pixels, (x, y, SMALL, SMALL), COLORS[1] if chosen else "0.8", 1.8 if chosen else 0.8
                )
                board.text(x + SMALL / 2, y - 0.03, label, ha="center", va="bottom", fontsize=7, color=color)
                if head == 0:
                    words = token_label(self.layers.named(layer), 14)
                    board.text(0, y + SMALL / 2, words, va="center", fontsize=8)
        if left_out := self._not_small():
            sheet.text(0, top + self._small_height() - 0.2, left_out, fontsize=8, color=GRAY)


def _widest(tokens: Sequence[str], places: range) -> float:
    return 0.15 + LETTER * max((len(token_label(tokens[place])) for place in places), default=1)
