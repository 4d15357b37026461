"""Bars: values by label, such as the next token's distribution, step by step."""

from __future__ import annotations

from dataclasses import dataclass

from weft.figures.canvas import COLORS, GRAY
from weft.figures.panels.panel import WIDTH, Axis, Panel, Sheet, expect_shape, token_label
from weft.figures.web.array_encoding import encode_array
from weft.foundation.arrays import Array
from weft.foundation.errors import WeftError
from weft.foundation.spec import Tree

BAR = 0.23  # inches
LETTER = 0.09


@dataclass(frozen=True)
class BarsPanel(Panel):
    """`values` [steps, n] with `labels`; `steps` names what each step follows; `marks` the label that is true."""

    title: str
    steps: Axis
    labels: tuple[tuple[str, ...], ...]
    values: Array
    marks: tuple[str | None, ...] = ()
    unit: str = "probability"
    note: str = ""

    kind = "bars"

    def __post_init__(self) -> None:
        expect_shape("bars", self.values, len(self.steps.options), None)
        if any(len(row) != self.values.shape[1] for row in self.labels) or len(self.labels) != len(self.values):
            raise WeftError(f"bars of {self.values.shape[0]} x {self.values.shape[1]} values need one label each")
        if self.marks and len(self.marks) != len(self.values):
            raise WeftError(f"{len(self.marks)} marks for {len(self.values)} steps: give one per step, or none")

    def axes(self) -> tuple[Axis, ...]:
        return (self.steps,)

    def payload(self) -> Tree:
        return {
            "labels": [list(row) for row in self.labels],
            "values": encode_array(self.values),
            "marks": list(self.marks),
            "unit": self.unit,
        }

    def height(self) -> float:
        return BAR * self.values.shape[1] + 0.5

    def draw(self, sheet: Sheet) -> None:
        step = self.steps.chosen
        labels, values = self.labels[step], self.values[step]
        mark = self.marks[step] if self.marks else None
        left = min(2.6, 0.25 + LETTER * max((len(token_label(label, 28)) for label in labels), default=1))
        axes = sheet.axes(left, 0.05, min(5.5, WIDTH - left - 1), BAR * len(values))
        colors = [COLORS[1] if label == mark else COLORS[0] for label in labels]
        axes.barh(range(len(values)), values, color=colors, height=0.68)
        axes.set_ylim(len(values) - 0.5, -0.5)
        top = max(float(values.max()), 1e-9)
        axes.set_xlim(0, 1.0 if self.unit == "probability" and top > 0.5 else top * 1.05)
        axes.set_yticks(range(len(labels)), labels=[token_label(label, 28) for label in labels], fontsize=9)
        axes.tick_params(axis="y", length=0)
        axes.tick_params(axis="x", labelsize=8, colors=GRAY)
        axes.spines["left"].set_visible(False)
        for place, value in enumerate(values):
            axes.annotate(
                f"{float(value):.3f}",
                (float(value), place),
                (3, 0),
                textcoords="offset points",
                va="center",
                fontsize=8,
            )
        axes.set_xlabel(self.unit, fontsize=8, color=GRAY)


def single_bars(
    title: str, labels: tuple[str, ...], values: Array, note: str = "", unit: str = "probability"
) -> BarsPanel:
    """Bars without steps to choose from: values [n]."""
    return BarsPanel(title, Axis("step", ("",)), (labels,), values[None], (), unit, note)
