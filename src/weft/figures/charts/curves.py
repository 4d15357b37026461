"""Training curves: loss or score by step, with the best value marked and a known best as a line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from weft.figures.canvas import COLORS, GRAY, canvas_style, drawable_text, save_figure
from weft.foundation.errors import WeftError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Curves = Mapping[str, Sequence[tuple[float, float]]]
Better = Literal["lower", "higher"]
Points = NDArray[np.float64]
NOISY = 100  # curves with more points show single batches: drawn pale under their running mean, the best not marked


def curve_figure(
    curves: Curves,
    title: str = "",
    x_label: str = "step",
    y_label: str = "loss",
    better: Better = "lower",
    known: tuple[float, str] | None = None,
    log_x: bool = False,
) -> Figure:
    """Curves of (step, value) by name, the best value of each marked; `known` (value, label) is a dashed line.

    Values that are not finite leave gaps; with `log_x`, points at steps up to 0 are left out.
    """
    from matplotlib.figure import Figure

    points = {name: _points(name, curve, log_x) for name, curve in curves.items()}
    if not any(np.isfinite(curve[:, 1]).any() for curve in points.values()):
        raise WeftError("no curve has a point to draw: give pairs of a step and a finite value")
    with canvas_style():
        figure = Figure(figsize=(6.4, 4.0), layout="constrained")
        axes = figure.add_subplot()
        if log_x:
            axes.set_xscale("log")
        axes.grid(axis="y")
        axes.set_axisbelow(True)
        drawn = [curve for curve in points.values() if np.isfinite(curve[:, 1]).any()]
        for number, (name, curve) in enumerate(points.items()):
            _draw_curve(axes, name, curve, COLORS[number % len(COLORS)], better)
        if known is not None:
            _draw_known(axes, *known)
        axes.xaxis.set_major_formatter("{x:,.10g}")
        axes.set_xlabel(drawable_text(x_label))
        axes.set_ylabel(drawable_text(y_label))
        if title:
            axes.set_title(drawable_text(title), fontsize=11, loc="left")
        if not log_x:
            axes.set_xlim(min(0.0, *(curve[:, 0].min() for curve in drawn)))
        axes.margins(x=0.02, y=0.08)
        axes.legend(fontsize=9)
    return figure


def draw_curves(
    path: str | Path,
    curves: Curves,
    title: str = "",
    x_label: str = "step",
    y_label: str = "loss",
    better: Better = "lower",
    known: tuple[float, str] | None = None,
    log_x: bool = False,
) -> Path:
    """`curve_figure` written as .png, .svg or .pdf."""
    return save_figure(curve_figure(curves, title, x_label, y_label, better, known, log_x), path)


def running_mean(values: Points, width: int) -> Points:
    """The mean of the last `width` values up to each one, fewer at the start; non-finite values are skipped."""
    here = np.isfinite(values)
    sums = np.concatenate([[0.0], np.cumsum(np.where(here, values, 0.0))])
    counts = np.concatenate([[0], np.cumsum(here)])
    ends = np.arange(1, len(values) + 1)
    starts = np.maximum(0, ends - width)
    number = counts[ends] - counts[starts]
    return np.where(number > 0, (sums[ends] - sums[starts]) / np.maximum(number, 1), np.nan)


def _points(name: str, curve: Sequence[tuple[float, float]], log_x: bool) -> Points:
    points = np.asarray(curve, dtype=np.float64).reshape(-1, 2) if len(curve) == 0 else np.array(curve, np.float64)
    if points.ndim != 2 or points.shape[1] != 2:
        shape = "x".join(map(str, points.shape))
        raise WeftError(f"curve {name!r} has shape {shape}: give pairs of a step and a value")
    points = points[points[:, 0] > 0] if log_x else points
    points[~np.isfinite(points[:, 1]), 1] = np.nan
    return points


def _draw_curve(axes: Axes, name: str, curve: Points, color: str, better: Better) -> None:
    steps, values = curve[:, 0], curve[:, 1]
    if not np.isfinite(values).any():
        axes.plot([], [], color=color, label=f"{drawable_text(name)} (no values)")
        return
    if len(curve) > NOISY:
        axes.plot(steps, values, color=color, linewidth=0.6, alpha=0.3)
        axes.plot(steps, running_mean(values, len(curve) // 40), color=color, linewidth=1.8, label=drawable_text(name))
        return
    best = int(np.nanargmin(values) if better == "lower" else np.nanargmax(values))
    marker = "o" if len(curve) < 40 else None
    label = f"{drawable_text(name)}, best {values[best]:.4g} at {steps[best]:,.10g}"
    axes.plot(steps, values, color=color, linewidth=1.8, marker=marker, markersize=3, label=label)
    axes.plot(
        steps[best],
        values[best],
        "o",
        markersize=9,
        markerfacecolor="none",
        markeredgecolor=color,
        markeredgewidth=1.6,
    )


def _draw_known(axes: Axes, value: float, label: str) -> None:
    axes.axhline(value, color=GRAY, linewidth=1.2, linestyle=(0, (5, 3)), label=drawable_text(f"{label} {value:.4g}"))
