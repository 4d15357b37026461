"""One query and one key, number by number: q.k = sum_i q_i k_i."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from weft.figures.canvas import COLORS, GRAY
from weft.figures.panels.panel import WIDTH, Axis, Panel, Sheet, expect_shape, token_label
from weft.figures.panels.tables import TablePanel, format_number
from weft.figures.web.array_encoding import encode_array
from weft.foundation.arrays import Array
from weft.foundation.spec import Tree

STRIP = 1.15  # inches


@dataclass(frozen=True)
class QueryKeyPanel(Panel):
    """`query` and `key` [ways, layers, heads, K], `scores` and `weights` [ways, layers, heads].

    A way is a direction: "not looks at terrible" and back. `scores` are the inputs of the softmax.
    """

    title: str
    ways: Axis
    layers: Axis
    heads: Axis
    query: Array
    key: Array
    scores: Array
    weights: Array
    note: str = "q.k is the sum of the products; scores also have the scale 1/sqrt(D_K), and what positions add."

    kind = "pair"

    def __post_init__(self) -> None:
        sizes = (len(self.ways.options), len(self.layers.options), len(self.heads.options))
        expect_shape("queries of the pair", self.query, *sizes, None)
        expect_shape("keys of the pair", self.key, *self.query.shape)
        expect_shape("scores of the pair", self.scores, *sizes)
        expect_shape("weights of the pair", self.weights, *sizes)

    def strongest(self) -> QueryKeyPanel:
        """A copy that shows the largest weight first."""
        places = np.unravel_index(int(self.weights.argmax()), self.weights.shape)
        ways, layers, heads = (replace(axis, chosen=int(n)) for axis, n in zip(self.axes(), places, strict=True))
        return replace(self, ways=ways, layers=layers, heads=heads)

    def axes(self) -> tuple[Axis, ...]:
        return self.ways, self.layers, self.heads

    def payload(self) -> Tree:
        return {
            "query": encode_array(self.query),
            "key": encode_array(self.key),
            "scores": encode_array(self.scores),
            "weights": encode_array(self.weights),
        }

    def height(self) -> float:
        return 3 * STRIP + 0.75 + self._table_height()

    def _table_height(self) -> float:
        return 0.5 + 0.24 * len(self.layers.options)

    def draw(self, sheet: Sheet) -> None:
        """Query, key and their products for the chosen head; the weights of all heads below."""
        place = (self.ways.chosen, self.layers.chosen, self.heads.chosen)
        q, k = self.query[place], self.key[place]
        strips = (("query", q, COLORS[0]), ("key", k, COLORS[2]), ("product", q * k, COLORS[1]))
        for row, (name, values, color) in enumerate(strips):
            axes = sheet.axes(0.95, 0.1 + row * STRIP, WIDTH - 1.2, STRIP - 0.3)
            axes.bar(range(len(values)), values, color=color, width=0.8)
            axes.axhline(0, color="0.6", linewidth=0.7)
            axes.tick_params(labelsize=7.5, colors=GRAY)
            axes.set_xlim(-0.6, len(values) - 0.4)
            axes.set_xticks(range(0, len(values), max(1, len(values) // 16)))
            sheet.text(0, 0.1 + row * STRIP + 0.25, name, fontsize=9.5, color=color, weight="bold")
        words = token_label(self.ways.options[place[0]], 60)
        total = float((q * k).sum())
        sheet.text(
            0,
            3 * STRIP + 0.02,
            f"{words}: q.k = {format_number(total)}, score {format_number(float(self.scores[place]))}, "
            f"weight after softmax {float(self.weights[place]):.3f}",
            fontsize=9.5,
        )
        self._draw_table(sheet, 3 * STRIP + 0.35)

    def _draw_table(self, sheet: Sheet, top: float) -> None:
        heads = tuple(f"head {name}" for name in self.heads.options)
        rows = tuple(f"layer {name}" for name in self.layers.options)
        values = np.asarray(self.weights[self.ways.chosen])
        table = TablePanel("weights", rows, heads, values)
        sheet.text(0, top, "weights of all heads", fontsize=8.5, color=GRAY)
        table.draw(sheet.lower(top + 0.1))
