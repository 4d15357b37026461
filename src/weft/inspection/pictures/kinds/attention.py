"""Kinds of pictures of attention, for `--kind`: alignment, rollout, flow, statistics of heads."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import numpy as np
import torch

from weft.figures.panels.attention import AttentionPanel
from weft.figures.panels.maps import MEAN, DenseMaps
from weft.figures.panels.overlays import OverlayPanel
from weft.figures.panels.panel import Axis, Panel
from weft.figures.panels.tables import TablePanel
from weft.figures.panels.tokens import TokensPanel
from weft.foundation.errors import WeftError
from weft.inspection.analysis.alignment import Alignment, Gold, align, alignment_error_rate, gold_of_tokens
from weft.inspection.analysis.flow import layered_flow
from weft.inspection.analysis.rollout import RESIDUAL, averaged_layers, mixed, parts_left_out, roll_out
from weft.inspection.pictures.look_options import LookOptions
from weft.inspection.pictures.observation import ImageObservation, Observation
from weft.inspection.pictures.panels import (
    Array,
    Panels,
    by_whom,
    find_token,
    head_axis,
    layer_axis,
    to_array,
    tokens_panel,
)
from weft.inspection.recording.attention_records import Kind
from weft.tasks.support.language.cross_alignment import AlignmentLayer

TOKENS_WITH_ALL_FLOWS = 24  # tokens; flows of more are shown for one row only
LONGEST_FLOW = 128  # tokens
ROLLOUT_TOKENS = 2048  # tokens; maps of more are not multiplied
WAYS = ("with residual", "attention alone")
ROLLED = "Heads averaged, layers multiplied; with 0.5 A + 0.5 I for the residual, or attention alone."


def has_alignment(observation: Observation) -> bool:
    """Whether what is written looks at a source."""
    return bool({"cross", "alignment"} & set(observation.kinds))


def alignment_panel(observation: Observation, options: LookOptions) -> TablePanel:
    """Source x target, the layer or head that aligns best first; with rings where the right links are known."""
    if not has_alignment(observation):
        raise WeftError("nothing to align: the model has no attention from a target to a source")
    kind: Kind = "alignment" if "alignment" in observation.kinds else "cross"
    layers, layer = layer_axis(observation, kind, options)
    heads = head_axis(observation, kind, options)
    maps = []
    for number in layers:
        each = to_array(observation.attention(number, kind))
        maps.append(np.concatenate([each.mean(0, keepdims=True), each]) if heads.options[0] == MEAN else each)
    if len(layers) > 1:
        maps.append(np.stack(maps).mean(0))
        layer = Axis(layer.name, (*layer.options, MEAN), layer.chosen)
    rows, columns = observation.labels(kind)
    values, title, notes = np.stack(maps), "Alignment: which source each token written looks at", []
    if options.layer is None and options.head is None and kind == "cross":
        best = align(observation.seen, observation.batch, call=observation.call)
        layer, heads = _showing(layer, best.layer), _showing(heads, best.head)
        title += f" ({_whose(best)})"
        notes.append(_why(observation, best))
    gold, marks = gold_links(observation, len(rows)), None
    if gold is not None:
        marks = np.zeros((len(rows), len(columns)), dtype=np.float32)
        for row, links in enumerate(gold):
            marks[row, sorted(links)] = 1
        error = alignment_error_rate(torch.from_numpy(values[layer.chosen, heads.chosen]), gold)
        notes.append(f"Rings mark where each token comes from; {error:.1%} of them are missed by the best look.")
    return TablePanel(
        title,
        rows,
        columns,
        values,
        (layer, heads),
        cells="colors",
        row_name="written",
        column_name="source",
        gold=marks,
        note=" ".join(notes),
    )


def _showing(axis: Axis, wanted: int | None) -> Axis:
    """The axis at a layer or head, or at the mean; one of a single layer or head has no other."""
    name = MEAN if wanted is None else str(wanted)
    return Axis(axis.name, axis.options, axis.options.index(name) if name in axis.options else 0)


def _whose(best: Alignment) -> str:
    if best.head is None:
        return str(AlignmentLayer(best.layer))
    return f"layer {best.layer}, head {best.head}"


def _why(observation: Observation, best: Alignment) -> str:
    """How the heads that are shown first were chosen."""
    if best.head is not None:
        return "This head is the sharpest of those that look at many source tokens."
    stored = getattr(observation.task, "alignment_layer", None) is not None
    where = "On held-out sentences" if stored else "In this sentence"
    return f"{where} this attention finds most of the source tokens that matter to what is written."


def gold_links(observation: Observation, rows: int) -> Gold | None:
    """Where each token written truly comes from, if the sample says so and the answer is the right one."""
    truth, found = observation.truth, observation.links
    if found is None:
        if not hasattr(truth, "alignment") or observation.said != truth.target:
            return None
        target, source = (_spans(pieces) for pieces in (observation.written[: len(truth.target)], observation.source))
        found = gold_of_tokens(truth.alignment, target, source)
    return [*found, *(set() for _ in range(rows - len(found)))][:rows]


def _spans(pieces: Sequence[str]) -> list[tuple[int, int]]:
    """The characters first .. last - 1 of each token."""
    ends = list(accumulate(map(len, pieces)))
    return list(zip([0, *ends[:-1]], ends, strict=True))


def rollouts(observation: Observation) -> Array:
    """Attention through the layers up to each, with and without the residual: [ways, layers, T, T]."""
    kind: Kind = "self" if "self" in observation.kinds else "encoder"
    _, _, T, _ = observation.sizes(-1, kind)
    if T > ROLLOUT_TOKENS:
        raise WeftError(f"{T:,} tokens are too many to multiply their maps: look at {ROLLOUT_TOKENS:,} or fewer")
    layers = averaged_layers(observation.seen, observation.batch, kind, observation.call)
    found = [[roll_out(layers[: depth + 1], share) for depth in range(len(layers))] for share in (RESIDUAL, 0.0)]
    return np.stack([np.stack([to_array(rolled) for rolled in way]) for way in found])


def _left_out(observation: Observation) -> str:
    """A sentence that names what the product leaves out, if anything."""
    kind: Kind = "self" if "self" in observation.kinds else "encoder"
    parts = parts_left_out(observation.seen, kind, observation.call)
    return f" Left out, because they are not attention: {', '.join(parts)}." if parts else ""


def _depths(observation: Observation) -> tuple[Axis, Axis]:
    kind: Kind = "self" if "self" in observation.kinds else "encoder"
    layers = tuple(map(str, observation.layers(kind)))
    return Axis("way", WAYS), Axis("to layer", layers, len(layers) - 1)


def pooled(observation: Observation, maps: Array) -> Array:
    """[..., T, T] -> [..., T]: the rows that the answer is read from."""
    pool = observation.pool or "mean"
    return maps.mean(-2) if pool == "mean" else maps[..., 0 if pool == "first" else -1, :]


def rolled_out(observation: ImageObservation) -> OverlayPanel:
    """Rollout over an image."""
    values = pooled(observation, rollouts(observation))[..., observation.first :]
    title = f"Rolled out through the layers, by {by_whom(observation).replace('tokens', 'patches')}"
    note = ROLLED + _left_out(observation)
    return OverlayPanel(
        title, observation.pixels, values.reshape(*values.shape[:2], *observation.grid), _depths(observation), note
    )


def rollout_picture(observation: Observation, options: LookOptions) -> Panels:
    """Rollout as a matrix with lines; over the image where there is one."""
    if isinstance(observation, ImageObservation) and observation.pool is not None:
        return Panels([rolled_out(observation)], [])
    kind: Kind = "self" if "self" in observation.kinds else "encoder"
    rows, columns = observation.labels(kind)
    ways, depths = _depths(observation)
    note = ROLLED + _left_out(observation)
    focus = None if options.row is None else find_token(rows, options.row)
    title = "Rollout: how much of what a token holds came from each input"
    return Panels(
        [AttentionPanel(title, rows, columns, ways, depths, DenseMaps(rollouts(observation)), note, focus)], []
    )


def flow_picture(observation: Observation, options: LookOptions) -> Panels:
    """Maximum flow from the top to each input: of all tokens of a short input, else of one, or of the whole answer."""
    kind: Kind = "self" if "self" in observation.kinds else "encoder"
    rows, columns = observation.labels(kind)
    if len(rows) > LONGEST_FLOW:
        raise WeftError(
            f"the flow through {len(rows):,} tokens takes too long: look at {LONGEST_FLOW} or fewer, or use rollout"
        )
    layers = [
        mixed(map_, RESIDUAL) for map_ in averaged_layers(observation.seen, observation.batch, kind, observation.call)
    ]
    note = "Layers as pipes whose capacities are 0.5 A + 0.5 I; the most that can run from the top to each input."
    note += _left_out(observation)
    whole = options.row is None and not isinstance(observation, ImageObservation)
    if whole and len(rows) <= TOKENS_WITH_ALL_FLOWS:
        values = to_array(layered_flow(layers))[None, None]
        one = Axis("layers", ("all",)), Axis("heads", (MEAN,))
        return Panels(
            [AttentionPanel("Flow from each token to each input", rows, columns, *one, DenseMaps(values), note)], []
        )
    if options.row is not None:
        row = find_token(rows, options.row)
        values, who = to_array(layered_flow(layers, row))[0], rows[row].strip()
    elif observation.pool == "mean":
        # One more node above all: the mean, fed by every token alike.
        top = torch.zeros_like(layers[0])
        top[0] = 1 / len(rows)
        values, who = to_array(layered_flow([*layers, top], 0))[0], "the mean of all"
    else:
        row = 0 if observation.pool == "first" else len(rows) - 1
        values, who = to_array(layered_flow(layers, row))[0], rows[row].strip()
    title = f"Flow from {who} to each input"
    if isinstance(observation, ImageObservation) and observation.pool is not None:
        cells = values[observation.first :].reshape(1, *observation.grid)
        return Panels([OverlayPanel(title, observation.pixels, cells, (Axis("flow", ("all layers",)),), note)], [])
    return Panels([TokensPanel(title, columns, values, (), note=note)], [])


def statistics_picture(observation: Observation, options: LookOptions) -> Panels:
    """Of each head: mean entropy, distance and largest weight of a row; and how much each token is looked at."""
    panels: list[Panel] = []
    names = ("entropy in nats", "distance in tokens", "largest weight")
    for kind in observation.kinds:
        found = observation.seen.statistics(kind, observation.batch, observation.call)
        values = np.stack([to_array(x) for x in (found.entropy, found.distance, found.largest)])
        rows = tuple(f"layer {layer}" for layer in found.layers)
        columns = tuple(f"head {head}" for head in range(values.shape[2]))
        note = "Entropy 0 looks at one token, log n at n alike; means over all rows."
        panels.append(
            TablePanel(f"Heads of {kind} attention", rows, columns, values, (Axis("statistic", names),), note=note)
        )
    if "self" in observation.kinds:
        panels.append(tokens_panel(observation, options))
    return Panels(panels, [])
