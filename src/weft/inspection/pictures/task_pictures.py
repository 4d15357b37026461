"""The picture that shows a task best: one function a task, from what was seen to panels."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from weft.figures.panels.attention import AttentionPanel
from weft.figures.panels.bars import BarsPanel
from weft.figures.panels.motion import MotionPanel
from weft.figures.panels.overlays import OverlayPanel
from weft.figures.panels.panel import Axis, Panel
from weft.figures.panels.series import ChannelsPanel, ForecastPanel
from weft.foundation.errors import WeftError
from weft.inspection.pictures.flows import alignment_panel, rolled_out
from weft.inspection.pictures.model import (
    filters_panel,
    has_effects,
    has_positions,
    judge_heads,
    positions_panel,
)
from weft.inspection.pictures.observations import ImageObservation, Observation, SequenceObservation, SeriesObservation
from weft.inspection.pictures.panels import (
    Array,
    LookOptions,
    Panels,
    attention_panel,
    by_whom,
    head_axis,
    layer_axis,
    odd_tag,
    pair_panel,
    received,
    shares_panel,
    to_array,
    tokens_panel,
)
from weft.inspection.recording.attention_records import Kind

TOP = 8  # next tokens that are shown
MOST_TRIED = 64  # heads that are switched off one by one to find the one that decides
BLOCK = 256  # positions whose next tokens are computed at once


def text_picture(observation: Observation, options: LookOptions) -> Panels:
    """Lines, the matrix by layer and head, and the next token after each."""
    panel, left_out = attention_panel(observation, "self", options, room=1)
    return Panels([panel, next_panel(observation)], left_out)


def next_panel(observation: Observation) -> BarsPanel:
    """The likeliest next tokens after each token, with the one that truly came."""
    run, module = observation.run, observation.seen.module
    tokenizer = getattr(getattr(run, "task", None), "tokenizer", None)
    ids = next((x for x in observation.inputs().values() if x.dim() == 1 and not x.is_floating_point()), None)
    if ids is None or observation.task != "text":
        raise WeftError("next tokens are a language model's: choose another --kind")
    with torch.inference_mode():
        output = module(ids[None])
        found = [output.head(part).float().softmax(-1).topk(TOP) for part in output.hidden[0].split(BLOCK)]
    values = to_array(torch.cat([part.values for part in found]))
    best = torch.cat([part.indices for part in found])
    names: dict[int, str] = {}
    for token in {*best.flatten().tolist(), *ids.tolist()}:
        names[token] = str(token) if tokenizer is None else tokenizer.pieces([token])[0]
    labels = tuple(tuple(names[token] for token in row) for row in best.tolist())
    steps = Axis(
        "after", tuple(f"{n} {token}" for n, token in enumerate(observation.tokens)), len(observation.tokens) - 1
    )
    came = (*(names[token] for token in ids.tolist()[1:]), None)
    return BarsPanel("What the model expects next", steps, labels, values, came)


def translation_picture(observation: Observation, options: LookOptions) -> Panels:
    """The alignment, and all maps that it comes from."""
    kind: Kind = "alignment" if "alignment" in observation.kinds else "cross"
    panel, left_out = attention_panel(observation, kind, options)
    more = [] if kind == "alignment" else [panel]
    return Panels([alignment_panel(observation, options), *more], left_out)


def tokens_picture(observation: Observation, options: LookOptions) -> Panels:
    """Tokens colored by attention, what the model says, who looks at whom, and two words' queries and keys."""
    panels: list[Panel] = [tokens_panel(observation, options)]
    if observation.shares:
        panels.append(shares_panel(observation))
    focus = odd_tag(observation)
    attention, left_out = attention_panel(observation, "self", options, focus, room=1)
    if focus is not None and options == LookOptions(pair=options.pair) and has_effects(observation):
        attention = _with_deciding_head(observation, options, attention)
    panels.append(attention)
    if options.pair is not None or observation.task in ("classification", "embedding"):
        panels.append(pair_panel(observation, options))
    return Panels(panels, left_out)


def _with_deciding_head(observation: Observation, options: LookOptions, panel: AttentionPanel) -> AttentionPanel:
    """The head shown first is the last layer's that the answer needs most, where there are few enough to try all."""
    if len(panel.layers.options) * len(panel.heads.options) > MOST_TRIED or len(panel.heads.options) < 2:
        return panel
    layer, head = judge_heads(observation, options).deciding()
    return panel.choose(layer, panel.heads.options.index(str(head)))


def image_picture(observation: Observation, options: LookOptions) -> Panels:
    """The image with each head's light and the rolled out one, what it says, filters and positions."""
    assert isinstance(observation, ImageObservation)
    layers, layer = layer_axis(observation, "self", options)
    heads = head_axis(observation, "self", options)
    weights = received(observation, "self", layers, heads)[..., observation.first :]
    maps = weights.reshape(*weights.shape[:2], *observation.grid)
    title = f"Where it looks, by {by_whom(observation).replace('tokens', 'patches')}"
    panels: list[Panel] = [OverlayPanel(title, observation.pixels, maps, (layer, heads)), rolled_out(observation)]
    if observation.shares:
        panels.append(shares_panel(observation))
    panels.append(filters_panel(observation, options))
    if has_positions(observation):
        panels.append(positions_panel(observation, options))
    return Panels(panels, [])


def words_picture(observation: Observation, options: LookOptions) -> Panels:
    """For each word of a caption, where in the image it looked."""
    assert isinstance(observation, ImageObservation)
    cells = observation.grid[0] * observation.grid[1]
    layers, layer = layer_axis(observation, "self", options)
    heads = head_axis(observation, "self", options)
    _, _, T, _ = observation.sizes(-1, "self")
    if cells >= T:
        raise WeftError("this model was trained blind, without images: there is nowhere to look")
    words = observation.written[: T - cells]
    maps = []
    for number in layers:
        each = to_array(observation.attention(number, "self", slice(cells, cells + len(words))))[..., :cells]
        both = [each.mean(0, keepdims=True), each] if heads.options[0] == "mean" else [each]
        maps.append(np.concatenate(both) if len(heads.options) > 1 else both[0])
    values = np.stack(maps).transpose(2, 0, 1, 3)
    values = values.reshape(*values.shape[:3], *observation.grid)
    first = next((place for place, word in enumerate(words) if len(word.strip()) > 2), 0)
    title = f"Where it looks for each word of: {observation.said}"
    note = f"Its caption: {observation.truth}" if isinstance(observation.truth, str) else ""
    return Panels(
        [OverlayPanel(title, observation.pixels, values, (Axis("word", words, first), layer, heads), note)], []
    )


def forecast_picture(observation: Observation, options: LookOptions) -> Panels:
    """History, forecast with its band, and where the last patch looks."""
    assert isinstance(observation, SeriesObservation)
    layers, layer = layer_axis(observation, "self", options)
    heads = head_axis(observation, "self", options)
    B, _, T, _ = observation.sizes(layers[0], "self")
    columns = []
    for batch in range(B):
        found = []
        for number in layers:
            each = to_array(observation.attention(number, "self", T - 1, batch))
            both = [each.mean(0, keepdims=True), each] if heads.options[0] == "mean" else [each]
            found.append(np.concatenate(both) if len(heads.options) > 1 else both[0])
        columns.append(np.stack(found))
    attention: Array = np.stack(columns)
    title = (
        f"Forecast of {observation.ahead.shape[0]} steps, and where its last patch of {observation.patch} steps looks"
    )
    panel = ForecastPanel(
        title,
        observation.columns,
        observation.history,
        observation.ahead,
        observation.low,
        observation.high,
        attention,
        (layer, heads),
        observation.patch,
    )
    return Panels([panel], [])


def time_picture(observation: Observation, options: LookOptions) -> Panels:
    """The sequence, in motion where it is a skeleton, with attention in time, and what the model says."""
    assert isinstance(observation, SequenceObservation)
    layers, layer = layer_axis(observation, "self", options)
    heads = head_axis(observation, "self", options)
    weights = received(observation, "self", layers, heads)
    extra = weights.shape[-1] - len(observation.tokens)
    attention, choices = weights[..., max(0, extra) :], (layer, heads)
    title = f"The sequence, and how much each step is looked at, by {by_whom(observation).replace('tokens', 'steps')}"
    if observation.up is not None:
        joints = observation.values.reshape(len(observation.values), -1, 3)
        drawn: Panel = MotionPanel(
            title, joints, observation.bones, attention, choices, observation.up, observation.joints
        )
    else:
        names = tuple(f"channel {number}" for number in range(observation.values.shape[1]))
        drawn = ChannelsPanel(title, observation.values, names, attention, choices)
    return Panels([drawn, shares_panel(observation)], [])


# By the name that a task gives its picture, and by the task where two share one.
TASKS: dict[str, tuple[str, Callable[[Observation, LookOptions], Panels]]] = {
    "text": ("tokens", text_picture),
    "translation": ("alignment", translation_picture),
    "classification": ("tokens", tokens_picture),
    "tagging": ("tokens", tokens_picture),
    "embedding": ("tokens", tokens_picture),
    "images": ("image", image_picture),
    "captions": ("words", words_picture),
    "forecast": ("forecast", forecast_picture),
    "sequences": ("time", time_picture),
}
