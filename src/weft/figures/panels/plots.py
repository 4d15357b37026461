"""Named curves over one axis: norms of the residual stream by layer, loss by position, gradients by distance."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from weft.figures.canvas import COLORS, GRAY, drawable_text
from weft.figures.panels.panel import WIDTH, Panel, Sheet, expect_shape
from weft.figures.web.array_encoding import encode_array
from weft.foundation.arrays import Array
from weft.foundation.spec import Tree


@dataclass(frozen=True)
class PlotPanel(Panel):
    """Values [curves, n] at places [n]; values that are not finite leave gaps."""

    title: str
    places: Array
    values: Array
    names: tuple[str, ...]
    x_label: str = ""
    y_label: str = ""
    note: str = ""

    kind = "plot"

    def __post_init__(self) -> None:
        expect_shape("curves", self.values, len(self.names), len(self.places))

    def payload(self) -> Tree:
        return {
            "places": encode_array(self.places),
            "values": encode_array(self.values),
            "names": list(self.names),
            "x_label": self.x_label,
            "y_label": self.y_label,
        }

    def height(self) -> float:
        return 3.3

    def draw(self, sheet: Sheet) -> None:
        axes = sheet.axes(0.8, 0.1, WIDTH - 1.0, 2.6)
        many = len(self.names) > len(COLORS)
        for number, (name, values) in enumerate(zip(self.names, self.values, strict=True)):
            color = COLORS[number % len(COLORS)]
            marker = "o" if len(self.places) < 30 and not many else None
            line: Any = {"linewidth": 0.8, "alpha": 0.6} if many else {"linewidth": 1.5}
            axes.plot(
                self.places, values, color=color, marker=marker, markersize=3, label=drawable_text(name, 24), **line
            )
        if not many and len(self.names) > 1:
            axes.legend(fontsize=8, ncols=min(4, len(self.names)))
        axes.grid(axis="y")
        axes.set_xlabel(drawable_text(self.x_label), fontsize=8.5, color=GRAY)
        axes.set_ylabel(drawable_text(self.y_label), fontsize=8.5, color=GRAY)
        axes.tick_params(labelsize=8, colors=GRAY)
        if len(self.places) < 20 and np.array_equal(self.places, np.rint(self.places)):
            axes.set_xticks(self.places)
