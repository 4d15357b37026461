"""Grids of booleans or numbers: as text for a terminal, as a heat map for a file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from weft.figures.canvas import save_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def text_grid(rows: Sequence[Sequence[bool]], labels: Sequence[str] | None = None) -> str:
    """One line per row, a full square for true, a dot for false."""
    lines = [" ".join("■" if cell else "·" for cell in row) for row in rows]
    if labels is None:
        return "\n".join(lines)
    width = max(map(len, labels), default=0)
    return "\n".join(f"{label:>{width}} {line}" for label, line in zip(labels, lines, strict=True))


def draw_grid(
    rows: Sequence[Sequence[float]],
    path: str | Path,
    title: str = "",
    row_labels: Sequence[str] | None = None,
    column_labels: Sequence[str] | None = None,
) -> Path:
    """A heat map with queries down and keys across, written as .png, .svg or .pdf."""
    return save_figure(grid_figure(rows, title, row_labels, column_labels), path)


def grid_figure(
    rows: Sequence[Sequence[float]],
    title: str = "",
    row_labels: Sequence[str] | None = None,
    column_labels: Sequence[str] | None = None,
) -> Figure:
    """The heat map as a matplotlib figure, without touching pyplot's global state."""
    from matplotlib.figure import Figure

    height, width = len(rows), len(rows[0]) if rows else 0
    figure = Figure(figsize=(max(2.5, min(10, 0.28 * width + 1)), max(2.2, min(10, 0.28 * height + 1))))
    axes = figure.add_subplot()
    axes.imshow([[float(cell) for cell in row] for row in rows], cmap="Blues", vmin=0, vmax=1, aspect="equal")
    for labels, setter, limit in (
        (row_labels, axes.set_yticks, height),
        (column_labels, axes.set_xticks, width),
    ):
        step = max(1, limit // 16)
        ticks = range(limit) if labels else range(0, limit, step)
        setter(list(ticks), labels=list(labels) if labels else [str(tick) for tick in ticks])
    if column_labels:
        axes.tick_params(axis="x", rotation=90)
    if limit_lines := max(height, width) <= 32:
        axes.set_xticks([c - 0.5 for c in range(1, width)], minor=True)
        axes.set_yticks([r - 0.5 for r in range(1, height)], minor=True)
        axes.grid(which="minor", color="0.85", linewidth=0.6)
    axes.tick_params(which="minor", length=0)
    axes.set_xlabel("key")
    axes.set_ylabel("query")
    axes.set_title(title, fontsize=10)
    axes.set_axisbelow(not limit_lines)
    return figure
