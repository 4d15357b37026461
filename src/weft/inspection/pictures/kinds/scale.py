"""The picture of `--kind scale`: what 1/sqrt(D_K) does to attention before training, and to training itself."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from weft.figures.panels.panel import Panel
from weft.figures.panels.plots import PlotPanel
from weft.figures.panels.tables import TablePanel, format_number
from weft.figures.picture import Picture
from weft.inspection.analysis.scale import (
    KEYS,
    RATE,
    SAMPLE,
    SCORES,
    WAYS,
    Progress,
    ScaleCurves,
    ScaleStatistics,
    head_width_of,
    scale_curves,
    scale_statistics,
)
from weft.inspection.analysis.statistics import initial_sharpness
from weft.inspection.pictures.look_options import LookOptions
from weft.inspection.pictures.panels import to_array
from weft.models.estimates import estimate

LARGEST = 50_000_000  # parameters of a model that is built to be measured
WIDEST = 256  # D_K of the model that is trained


def scale_picture(spec: Any, name: str, options: LookOptions, progress: Progress | None = None) -> Picture:
    """Attention against D_K before training, the model as it is built, and training with and without the scale."""
    own = head_width_of(spec)
    found = scale_statistics()
    panels: list[Panel] = [_largest_plot(found), _jacobian_plot(found), _statistics_table(found)]
    left_out = []
    reason = _not_measured(spec)
    if reason is None:
        panels.append(_model_table(spec, name, own))
    else:
        left_out.append(f"The model itself as it is built: {reason}.")
    if options.steps:
        panels.append(_curves_plot(scale_curves(min(own, WIDEST), options.steps, progress=progress)))
    else:
        left_out.append("Training with and without the scale: ask for it with --steps 200.")
    title = f"The effect of the scale 1/sqrt(D_K): {name}, D_K = {own}, sqrt(D_K) = {format_number(own**0.5)}"
    words = f"unit normal queries and keys, {KEYS} keys per row; model {spec.family}"
    return Picture(title, tuple(panels), words, tuple(left_out))


def _not_measured(spec: Any) -> str | None:
    """Why the model's own scores are not measured; None if they are."""
    parameters = estimate(spec).parameters
    if parameters > LARGEST:
        return f"{parameters:,} parameters are too many to build one for a picture"
    score = spec.mixer[0].score
    return None if score in SCORES else f"its score {score} is no softmax of q.k"


def _plot(found: ScaleStatistics, values: Tensor, title: str, label: str, note: str, more: float) -> PlotPanel:
    """A statistic by log2 D_K, with a line at what equal weights give."""
    places = np.log2(np.array(found.widths, dtype=np.float32))
    curves = np.concatenate([to_array(values), np.full((1, len(places)), more, dtype=np.float32)])
    return PlotPanel(title, places, curves, (*WAYS, "equal weights"), "log2 D_K", label, note)


def _largest_plot(found: ScaleStatistics) -> PlotPanel:
    note = "The variance of q.k is D_K: without the scale one key takes all the weight, before anything is learned."
    return _plot(found, found.largest, "Sharpness: the largest weight of a row", "largest weight", note, 1 / KEYS)


def _jacobian_plot(found: ScaleStatistics) -> PlotPanel:
    note = (
        "|diag(a) - a a^T|: what is left of a gradient behind the softmax. A single weight of 1 lets nothing through."
    )
    equal = (1 / KEYS - 1 / KEYS**2) ** 0.5
    return _plot(found, found.jacobian, "Norm of the softmax's Jacobian", "Frobenius norm", note, equal)


def _statistics_table(found: ScaleStatistics) -> TablePanel:
    """All numbers; each pair of columns is colored by its own largest."""
    names = {
        "variance": found.variance,
        "largest": found.largest,
        "entropy": found.entropy,
        "Jacobian": found.jacobian,
    }
    columns, numbers, shares = [], [], []
    for name, values in names.items():
        for way, row in zip(("scaled", "unscaled"), values, strict=True):
            columns.append(f"{name}, {way}")
            numbers.append([format_number(value) for value in row.tolist()])
            shares.append(to_array(row / values.max()))
    words = tuple(tuple(column[row] for column in numbers) for row in range(len(found.widths)))
    note = (
        f"Variance of the scores; a row's largest weight, entropy (equal weights: {np.log(KEYS):.2f} nats), Jacobian."
    )
    return TablePanel(
        "With and without the scale, by D_K",
        tuple(map(str, found.widths)),
        tuple(columns),
        np.stack(shares, 1),
        words=words,
        row_name="D_K",
        note=note,
    )


def _model_table(spec: Any, name: str, own: int) -> TablePanel:
    """Scores of the model's own queries and keys, just built, on random tokens."""
    found = initial_sharpness(spec)
    columns = torch.stack([found.variance, found.variance / own, found.scaled.double(), found.unscaled.double()])
    values = columns.mean(-1).T
    names = ("variance of q.k", "variance, scaled", "largest, scaled", "largest, unscaled")
    words = tuple(tuple(format_number(value) for value in row) for row in values.tolist())
    note = f"Random tokens, mean over heads; equal weights would have {found.uniform:.3f} as the largest."
    return TablePanel(
        f"{name} as it is built, before training",
        tuple(f"layer {layer}" for layer in range(len(values))),
        names,
        to_array(torch.cat([values[:, :2] / values[:, :2].max().clamp(min=1e-12), values[:, 2:]], 1)),
        words=words,
        note=note,
    )


def _curves_plot(found: ScaleCurves) -> PlotPanel:
    last = [format_number(loss) for loss in found.losses[:, -1].tolist()]
    note = (
        f"The same small encoder-decoder, one head of D_K = {found.head_width}, AdamW at {RATE:g}, sample {SAMPLE}: "
        f"{last[0]} nats per letter after {found.steps[-1]} steps with the scale, {last[1]} without."
    )
    steps = np.array(found.steps[1:], dtype=np.float32)
    values = to_array(found.losses[:, 1:])
    return PlotPanel("Training with and without the scale", steps, values, WAYS, "step", "validation loss", note)
