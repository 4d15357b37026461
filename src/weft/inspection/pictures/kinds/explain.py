"""The picture of `--explain`: one attention output, step by step, in its actual numbers."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from weft.figures.panels.attention_steps import AttentionStep, AttentionStepsPanel
from weft.figures.panels.maps import MEAN
from weft.figures.panels.panel import visible_token
from weft.inspection.analysis.explain import Explanation, explain
from weft.inspection.pictures.look_options import LookOptions
from weft.inspection.pictures.observation import Observation
from weft.inspection.pictures.panels import (
    find_token,
    head_axis,
    layer_axis,
    most_focused_layer_and_head,
    odd_tag,
    to_array,
)
from weft.inspection.recording.attention_records import Kind

MOST_KEYS = 64  # keys that are all shown; of more, those that count most


def explain_panel(observation: Observation, options: LookOptions) -> AttentionStepsPanel:
    """One head's output at one token: the one asked for, else the one that looks most at another token."""
    kind = first_kind(observation)
    rows, columns = observation.labels(kind)
    layers, layer = layer_axis(observation, kind, options)
    row = find_token(rows, options.row) if options.row is not None else _telling_row(observation, kind)
    heads = head_axis(observation, kind, options, mean=False)
    number, head = layers[layer.chosen], heads.chosen
    if heads.options == (MEAN,):
        head = options.head or 0
    elif options.layer is None and options.head is None:
        number, head = most_focused_layer_and_head(observation, kind, row)
    elif options.head is None:
        head = most_focused_layer_and_head(observation, kind, row, [number])[1]
    found = explain(
        observation.seen,
        layer=number,
        head=head,
        row=row,
        batch=observation.batch,
        kind=kind,
        call=observation.call,
        names=[visible_token(token) for token in columns],
        row_names=[visible_token(token) for token in rows],
    )
    title = f"One output unfolded: {visible_token(rows[row])} ({row}), layer {number}, head {head}"
    return AttentionStepsPanel(title, as_steps(found), found.title)


def _telling_row(observation: Observation, kind: Kind) -> int:
    """The token that stands out; of what is written the one that looks sharpest at its source; else the last."""
    _, _, T, _ = observation.sizes(-1, kind)
    if kind in ("cross", "alignment"):
        return int(observation.attention(-1, kind).amax((0, 2)).argmax())
    odd = odd_tag(observation)
    return T - 1 if odd is None else odd


def first_kind(observation: Observation) -> Kind:
    """The kind that is explained: recurrent alignment or what is written looking at the source, else self-attention."""
    order: tuple[Kind, ...] = ("alignment", "cross")
    return next((kind for kind in order if kind in observation.kinds), observation.kinds[0])


def as_steps(found: Explanation) -> tuple[AttentionStep, ...]:
    """An explanation's steps with their numbers as tables."""
    every = len(found.key_names) <= MOST_KEYS
    shown = list(range(len(found.key_names))) if every else found.shown
    words = "" if every else f"the {len(shown)} keys that count most, of {len(found.key_names):,}"
    keys = tuple(found.key_names[place] for place in shown)
    steps = []
    for step in found.steps:
        flat = {name: value for name, value in step.values.items() if value.dim() < 2}
        if step.keys and flat:
            values = np.stack([to_array(value)[shown] for value in flat.values()], 1)
            steps.append(AttentionStep(step.name, step.formula, step.part, values, keys, tuple(flat), words))
        for name, value in step.values.items():
            if step.keys and value.dim() == 2:
                table = to_array(value)[shown]
                steps.append(AttentionStep(step.name, step.formula, step.part, table, keys, (), words))
            elif not step.keys:
                steps.append(
                    AttentionStep(step.name, step.formula, step.part, _one_row(value), (f"{name} ({found.row_name})",))
                )
    return tuple(steps)


def _one_row(value: Tensor) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    return to_array(value.reshape(1, -1))
