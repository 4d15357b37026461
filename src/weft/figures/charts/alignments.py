"""Alignments: the attention of target tokens over source tokens, as a heat map."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from weft.figures.canvas import GRAY, canvas_style, drawable_text
from weft.figures.panels.panel import token_label
from weft.foundation.errors import WeftError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CELL, SMALLEST_CELL = 0.30, 0.145  # inches
LARGEST = 9.0


def alignment_figure(
    weights: ArrayLike,
    source: Sequence[str],
    target: Sequence[str],
    title: str = "",
) -> Figure:
    """Weights [target tokens, source tokens]: source on top, target at the left; darker is more.

    Cells and letters shrink with the number of tokens and stay readable up to about 60.
    """
    from matplotlib.figure import Figure

    values = np.asarray(weights, dtype=np.float64)
    if values.shape != (len(target), len(source)) or values.size == 0:
        shape = "x".join(map(str, values.shape))
        raise WeftError(
            f"weights of shape {shape} for {len(target)} target and {len(source)} source tokens: "
            "give one row per target token and one column per source token"
        )
    cell = max(SMALLEST_CELL, min(CELL, LARGEST / max(values.shape)))
    letters = min(10.0, 72 * cell * 0.7)
    rows, columns = ([token_label(token) for token in tokens] for tokens in (target, source))
    width, height = cell * len(source), cell * len(target)
    with canvas_style():
        figure = Figure(figsize=(width, height))
        axes = figure.add_axes((0, 0, 1, 1))
        axes.spines[:].set_visible(True)
        axes.spines[:].set_color("0.75")
        top = float(np.nanmax(values)) if np.isfinite(values).any() else 1.0
        image = axes.imshow(values, cmap="Blues", vmin=0, vmax=top if top > 0 else 1.0, aspect="equal")
        axes.xaxis.tick_top()
        axes.set_xticks(range(len(columns)), labels=columns, fontsize=letters, rotation=90)
        axes.set_yticks(range(len(rows)), labels=rows, fontsize=letters)
        axes.set_xticks(np.arange(1, len(columns)) - 0.5, minor=True)
        axes.set_yticks(np.arange(1, len(rows)) - 0.5, minor=True)
        axes.grid(which="minor", color="white", linewidth=0.6)
        axes.tick_params(which="both", length=0, top=False, bottom=False, left=False)
        if title:
            axes.set_title(drawable_text(title), fontsize=11, loc="left", pad=8)
        bar = figure.add_axes((1 + 0.12 / width, 0, 0.12 / width, min(1.0, 1.5 / height)))
        figure.colorbar(image, cax=bar)
        bar.tick_params(labelsize=8, colors=GRAY)
        bar.spines[:].set_visible(False)
    return figure
