"""The picture of `--explain`: one attention output, step by step, in its actual numbers."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from weft.figures.panels.maps import MEAN
from weft.figures.panels.panel import visible_token
from weft.figures.panels.unfolding import Step, Unfolding
from weft.inspection.analysis.explain import Explanation, explain
from weft.inspection.pictures.observations import Scene
from weft.inspection.pictures.panels import Asked, find_token, head_axis, layer_axis, odd_tag, telling_place, to_array
from weft.inspection.recording.attention_records import Kind

MOST_KEYS = 64  # keys that are all shown; of more, those that count most


def explain_panel(scene: Scene, asked: Asked) -> Unfolding:
    """One head's output at one token: the one asked for, else the one that looks most at another token."""
    kind = first_kind(scene)
    rows, columns = scene.labels(kind)
    layers, layer = layer_axis(scene, kind, asked)
    row = find_token(rows, asked.row) if asked.row is not None else _telling_row(scene, kind)
    heads = head_axis(scene, kind, asked, mean=False)
    number, head = layers[layer.chosen], heads.chosen
    if heads.options == (MEAN,):
        head = asked.head or 0
    elif asked.layer is None and asked.head is None:
        number, head = telling_place(scene, kind, row)
    elif asked.head is None:
        head = telling_place(scene, kind, row, [number])[1]
    found = explain(
        scene.seen,
        layer=number,
        head=head,
        row=row,
        batch=scene.batch,
        kind=kind,
        call=scene.call,
        names=[visible_token(token) for token in columns],
        row_names=[visible_token(token) for token in rows],
    )
    title = f"One output unfolded: {visible_token(rows[row])} ({row}), layer {number}, head {head}"
    return Unfolding(title, as_steps(found), found.title)


def _telling_row(scene: Scene, kind: Kind) -> int:
    """The token that stands out; of what is written the one that looks sharpest at its source; else the last."""
    _, _, T, _ = scene.sizes(-1, kind)
    if kind in ("cross", "alignment"):
        return int(scene.attention(-1, kind).amax((0, 2)).argmax())
    odd = odd_tag(scene)
    return T - 1 if odd is None else odd


def first_kind(scene: Scene) -> Kind:
    """The kind that is explained: recurrent alignment or what is written looking at the source, else self-attention."""
    order: tuple[Kind, ...] = ("alignment", "cross")
    return next((kind for kind in order if kind in scene.kinds), scene.kinds[0])


def as_steps(found: Explanation) -> tuple[Step, ...]:
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
            steps.append(Step(step.name, step.formula, step.part, values, keys, tuple(flat), words))
        for name, value in step.values.items():
            if step.keys and value.dim() == 2:
                table = to_array(value)[shown]
                steps.append(Step(step.name, step.formula, step.part, table, keys, (), words))
            elif not step.keys:
                steps.append(Step(step.name, step.formula, step.part, _one_row(value), (f"{name} ({found.row_name})",)))
    return tuple(steps)


def _one_row(value: Tensor) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    return to_array(value.reshape(1, -1))
