"""Forecasts: history, forecast with its band, and the truth where it is known, one panel per column."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from weft.figures.canvas import COLORS, GRAY, canvas_style, drawable_text
from weft.foundation.arrays import Array
from weft.foundation.errors import WeftError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_PANELS = 8
LEAST_PAST = 32


def forecast_figure(
    history: ArrayLike,
    forecast: ArrayLike,
    low: ArrayLike | None = None,
    high: ArrayLike | None = None,
    truth: ArrayLike | None = None,
    names: Sequence[str] | None = None,
    title: str = "",
    band: str = "interval",
) -> Figure:
    """History [T, C] and forecast [H, C] with the band from low to high [H, C] and the truth [H, C], time 0 being now.

    At most 8 columns and the last 3 H steps (or 32) of the history are drawn; a single column may be [T] and [H].
    """
    from matplotlib.figure import Figure

    past = _column_wise("history", history, None)
    ahead = _column_wise("forecast", forecast, (None, past.shape[1]))
    others = [
        None if values is None else _column_wise(name, values, ahead.shape)
        for name, values in (("low", low), ("high", high), ("truth", truth))
    ]
    if (low is None) != (high is None):
        raise WeftError("a band has two ends, but only one was given: give both low and high")
    labels = [f"column {number}" for number in range(1, past.shape[1] + 1)] if names is None else list(names)
    if len(labels) != past.shape[1]:
        raise WeftError(f"{len(labels)} names for {past.shape[1]} columns: give one per column")
    past = past[-max(3 * len(ahead), LEAST_PAST) :]
    panels = min(len(labels), MOST_PANELS)
    across = 1 if panels < 4 else 2
    down = -(-panels // across)
    with canvas_style():
        figure = Figure(figsize=(7.5 if across == 1 else 11, 1.75 * down + 0.7), layout="constrained")
        for number in range(panels):
            axes = figure.add_subplot(down, across, number + 1)
            parts = [None if part is None else part[:, number] for part in others]
            _draw_panel(axes, past[:, number], ahead[:, number], parts, band)
            axes.set_title(drawable_text(labels[number], 60), fontsize=10, loc="left", pad=3)
            axes.tick_params(labelbottom=number + across >= panels)
        figure.supxlabel("steps from now", fontsize=10)
        handles, words = figure.axes[0].get_legend_handles_labels()
        figure.legend(handles, words, loc="outside upper right", ncols=len(handles), fontsize=9)
        hidden = f"{panels} of {len(labels)} columns" if panels < len(labels) else ""
        if heading := ", ".join(filter(None, (title, hidden))):
            figure.suptitle(drawable_text(heading), fontsize=11, x=0.01, ha="left")
    return figure


def _draw_panel(axes: Axes, past: Array, ahead: Array, others: Sequence[Array | None], band: str) -> None:
    """History and truth are one line, so both go through now; the forecast starts at the last known value."""
    low, high, truth = others
    before, after = np.arange(1 - len(past), 1), np.arange(len(ahead) + 1)
    joined = np.concatenate([past[-1:], ahead])
    if low is not None and high is not None:
        floor, roof = np.concatenate([past[-1:], low]), np.concatenate([past[-1:], high])
        axes.fill_between(after, floor, roof, color=COLORS[0], alpha=0.2, linewidth=0, label=drawable_text(band))
    axes.plot(before, past, color=GRAY, linewidth=1.2, label="history")
    if truth is not None:
        axes.plot(after, np.concatenate([past[-1:], truth]), color=COLORS[1], linewidth=1.2, label="truth")
    axes.plot(after, joined, color=COLORS[0], linewidth=1.6, label="forecast")
    axes.axvline(0, color="0.75", linewidth=0.8, zorder=0)
    axes.grid(axis="y")
    axes.set_axisbelow(True)
    axes.margins(x=0.01)


def _column_wise(name: str, values: ArrayLike, wanted: tuple[int | None, int] | None) -> Array:
    """[steps, columns], at least one of each, and as many as `wanted` says."""
    array = np.asarray(values, dtype=np.float64)
    array = array[:, None] if array.ndim == 1 else array
    steps, columns = wanted or (None, None)
    fits = array.ndim == 2 and array.size > 0 and columns in (None, array.shape[1]) and steps in (None, len(array))
    if not fits:
        shape = "x".join(map(str, array.shape))
        raise WeftError(f"{name} has shape {shape}, but {steps or 'steps'} x {columns or 'columns'} is needed")
    return array
