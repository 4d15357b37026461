"""Numbers over time with the attention on them: forecasts, channels of a sequence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from weft.figures.canvas import COLORS, GRAY, drawable_text
from weft.figures.palette import color_map, to_colors
from weft.figures.panels.panel import WIDTH, Axis, Panel, Sheet, draw_thumbnail, expect_shape
from weft.figures.panels.tables import value_range
from weft.figures.web.array_encoding import encode_array
from weft.foundation.arrays import Array
from weft.foundation.errors import WeftError
from weft.foundation.spec import Tree

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PLOT, STRIP, GAP = 2.0, 0.22, 0.62  # inches
LEFT = 0.75
MOST_COLUMNS = 6
MOST_STRIPS = 14


@dataclass(frozen=True)
class ForecastPanel(Panel):
    """History [T, C], forecast [H, C] with its band, and attention over the history, [columns, choices ..., patches].

    Columns that share their tokens share their attention: [1, ...]. Each patch has `patch` steps; the last one ends
    now.
    """

    title: str
    columns: tuple[str, ...]
    history: Array
    ahead: Array
    low: Array | None
    high: Array | None
    attention: Array
    choices: tuple[Axis, ...]
    patch: int
    band: str = "80 % band"
    note: str = ""

    kind = "forecast"

    def __post_init__(self) -> None:
        C = len(self.columns)
        expect_shape("history", self.history, None, C)
        expect_shape("forecast", self.ahead, None, C)
        for name, values in (("low", self.low), ("high", self.high)):
            if values is not None:
                expect_shape(name, values, len(self.ahead), C)
        if len(self.attention) not in (1, C):
            raise WeftError(f"attention of {len(self.attention)} columns for {C}: give one each, or one for all")
        expect_shape("attention over history", self.attention, None, *(len(a.options) for a in self.choices), None)

    def axes(self) -> tuple[Axis, ...]:
        return (Axis("column", self.columns), *self.choices)

    def shown(self) -> str:
        """A still shows all columns."""
        return ", ".join(axis.named(axis.chosen) for axis in self.choices if len(axis.options) > 1)

    def payload(self) -> Tree:
        ends = {name: None if x is None else encode_array(x) for name, x in (("low", self.low), ("high", self.high))}
        return {
            "history": encode_array(self.history),
            "ahead": encode_array(self.ahead),
            **ends,
            "attention": encode_array(self.attention),
            "patch": self.patch,
            "band": self.band,
        }

    def height(self) -> float:
        return min(len(self.columns), MOST_COLUMNS) * (PLOT + GAP) + 0.35

    def draw(self, sheet: Sheet) -> None:
        """Per column its numbers, and below them the attention of the last patch."""
        place = tuple(axis.chosen for axis in self.choices)
        for number, name in enumerate(self.columns[:MOST_COLUMNS]):
            top = number * (PLOT + GAP)
            axes = sheet.axes(LEFT, top + 0.12, WIDTH - LEFT - 0.1, PLOT - STRIP - 0.15)
            self._draw_column(axes, number)
            axes.set_title(drawable_text(name, 60), fontsize=9.5, loc="left", pad=3)
            if number == 0:
                axes.legend(fontsize=8, loc="upper right", bbox_to_anchor=(1, 1.16), ncols=3)
            strip = sheet.axes(LEFT, top + PLOT, WIDTH - LEFT - 0.1, STRIP)
            weights = self.attention[min(number, len(self.attention) - 1)][place]
            self._draw_strip(strip, weights, axes.get_xlim())
            sheet.text(0, top + PLOT + 0.04, "looks at", fontsize=8, color=GRAY)
        bottom = min(len(self.columns), MOST_COLUMNS) * (PLOT + GAP)
        sheet.text(LEFT + 3.5, bottom + 0.12, "steps from now", fontsize=8.5, color=GRAY)

    def _draw_column(self, axes: Axes, number: int) -> None:
        past, ahead = self.history[:, number], self.ahead[:, number]
        before, after = np.arange(1 - len(past), 1), np.arange(len(ahead) + 1)
        if self.low is not None and self.high is not None:
            low, high = (np.concatenate([past[-1:], end[:, number]]) for end in (self.low, self.high))
            axes.fill_between(after, low, high, color=COLORS[0], alpha=0.2, linewidth=0, label=self.band)
        axes.plot(before, past, color=GRAY, linewidth=1.1, label="history")
        axes.plot(after, np.concatenate([past[-1:], ahead]), color=COLORS[0], linewidth=1.5, label="forecast")
        axes.axvline(0, color="0.75", linewidth=0.8, zorder=0)
        axes.set_xlim(1 - len(past), len(ahead))
        axes.tick_params(labelbottom=False, labelsize=8, colors=GRAY)
        axes.grid(axis="y")

    def _draw_strip(self, axes: Axes, weights: Array, limits: tuple[float, float]) -> None:
        ends = -self.patch * np.arange(len(weights), -1, -1) + 0.5
        low, high = value_range(weights, "share")
        axes.pcolormesh(ends, [0, 1], weights[None], cmap=color_map("share"), vmin=low, vmax=high)
        axes.set_xlim(*limits)
        axes.set_yticks([])
        axes.tick_params(labelsize=8, colors=GRAY)
        axes.spines[:].set_color("0.8")


@dataclass(frozen=True)
class ChannelsPanel(Panel):
    """A sequence [T, C] and the attention over time, [choices ..., T']; T' may be shorter than T (strides)."""

    title: str
    values: Array
    names: tuple[str, ...]
    attention: Array
    choices: tuple[Axis, ...]
    note: str = ""

    kind = "channels"

    def __post_init__(self) -> None:
        expect_shape("the sequence", self.values, None, len(self.names))
        expect_shape("attention in time", self.attention, *(len(axis.options) for axis in self.choices), None)

    def axes(self) -> tuple[Axis, ...]:
        return self.choices

    def payload(self) -> Tree:
        return {
            "values": encode_array(self.values),
            "names": list(self.names),
            "attention": encode_array(self.attention),
        }

    def height(self) -> float:
        return 2.8 + 0.2 * self._strips() + 0.3

    def _strips(self) -> int:
        return min(MOST_STRIPS, int(np.prod(self.attention.shape[:-1])))

    def draw(self, sheet: Sheet) -> None:
        """Channels as a heat map (or curves, if few), and one strip per head below."""
        axes = sheet.axes(1.6, 0.1, WIDTH - 1.7, 2.4)
        draw_channels(axes, self.values, self.names)
        draw_strips(sheet, 2.8, self.attention, self.choices)


def draw_channels(axes: Axes, values: Array, names: tuple[str, ...]) -> None:
    """Up to eight channels as curves, more as a heat map in units of each channel's standard deviation."""
    if len(names) <= 8:
        for number, name in enumerate(names):
            axes.plot(
                values[:, number], color=COLORS[number % len(COLORS)], linewidth=1.1, label=drawable_text(name, 20)
            )
        axes.legend(fontsize=7.5, loc="lower right", bbox_to_anchor=(1, 1), ncols=min(4, len(names)))
        axes.set_xlim(-0.5, len(values) - 0.5)
    else:
        axes.imshow(standardize(values).T, cmap=color_map("signed"), vmin=-3, vmax=3, aspect="auto")
        axes.set_ylabel("channel", fontsize=8.5, color=GRAY)
    axes.tick_params(labelsize=8, colors=GRAY)


def standardize(values: Array) -> Array:
    """Each channel with mean 0 and standard deviation 1."""
    spread = values.std(0)
    return (values - values.mean(0)) / np.where(spread > 0, spread, 1)


def draw_strips(sheet: Sheet, top: float, attention: Array, choices: tuple[Axis, ...]) -> None:
    """One strip over time per choice, as many as fit."""
    every = list(np.ndindex(*attention.shape[:-1]))[:MOST_STRIPS]
    board = sheet.lower(top).board()
    for line, choice in enumerate(every):
        values = attention[choice][None]
        pixels = to_colors(values, value_range(values, "share"), "share")
        draw_thumbnail(board, pixels, (1.6, 0.2 * line, WIDTH - 1.7, 0.16), "0.85", 0.8)
        words = ", ".join(axis.named(place) for axis, place in zip(choices, choice, strict=True))
        board.text(0, 0.2 * line + 0.08, words or "attention", va="center", fontsize=8, color=GRAY)
