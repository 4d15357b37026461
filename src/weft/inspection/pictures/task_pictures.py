"""The picture that shows a task best: one function a task, from what was seen to panels."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from weft.figures.panels.attention import Attention
from weft.figures.panels.bars import Bars
from weft.figures.panels.motion import Motion
from weft.figures.panels.overlays import Overlay
from weft.figures.panels.panel import Axis, Panel
from weft.figures.panels.series import Channels, Forecast
from weft.foundation.errors import WeftError
from weft.inspection.pictures.flows import alignment_panel, rolled_out
from weft.inspection.pictures.model import (
    filters_panel,
    has_effects,
    has_positions,
    judge_heads,
    positions_panel,
)
from weft.inspection.pictures.observations import ImageScene, Scene, SequenceScene, SeriesScene
from weft.inspection.pictures.panels import (
    Array,
    Asked,
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


def text_picture(scene: Scene, asked: Asked) -> Panels:
    """Lines, the matrix by layer and head, and the next token after each."""
    panel, left_out = attention_panel(scene, "self", asked, room=1)
    return Panels([panel, next_panel(scene)], left_out)


def next_panel(scene: Scene) -> Bars:
    """The likeliest next tokens after each token, with the one that truly came."""
    run, module = scene.run, scene.seen.module
    tokeniser = getattr(getattr(run, "task", None), "tokeniser", None)
    ids = next((x for x in scene.inputs().values() if x.dim() == 1 and not x.is_floating_point()), None)
    if ids is None or scene.task != "text":
        raise WeftError("next tokens are a language model's: choose another --kind")
    with torch.inference_mode():
        output = module(ids[None])
        found = [output.head(part).float().softmax(-1).topk(TOP) for part in output.hidden[0].split(BLOCK)]
    values = to_array(torch.cat([part.values for part in found]))
    best = torch.cat([part.indices for part in found])
    names: dict[int, str] = {}
    for token in {*best.flatten().tolist(), *ids.tolist()}:
        names[token] = str(token) if tokeniser is None else tokeniser.pieces([token])[0]
    labels = tuple(tuple(names[token] for token in row) for row in best.tolist())
    steps = Axis("after", tuple(f"{n} {token}" for n, token in enumerate(scene.tokens)), len(scene.tokens) - 1)
    came = (*(names[token] for token in ids.tolist()[1:]), None)
    return Bars("What the model expects next", steps, labels, values, came)


def translation_picture(scene: Scene, asked: Asked) -> Panels:
    """The alignment, and all maps that it comes from."""
    kind: Kind = "alignment" if "alignment" in scene.kinds else "cross"
    panel, left_out = attention_panel(scene, kind, asked)
    more = [] if kind == "alignment" else [panel]
    return Panels([alignment_panel(scene, asked), *more], left_out)


def tokens_picture(scene: Scene, asked: Asked) -> Panels:
    """Tokens coloured by attention, what the model says, who looks at whom, and two words' queries and keys."""
    panels: list[Panel] = [tokens_panel(scene, asked)]
    if scene.shares:
        panels.append(shares_panel(scene))
    focus = odd_tag(scene)
    attention, left_out = attention_panel(scene, "self", asked, focus, room=1)
    if focus is not None and asked == Asked(pair=asked.pair) and has_effects(scene):
        attention = _with_deciding_head(scene, asked, attention)
    panels.append(attention)
    if asked.pair is not None or scene.task in ("classification", "embedding"):
        panels.append(pair_panel(scene, asked))
    return Panels(panels, left_out)


def _with_deciding_head(scene: Scene, asked: Asked, panel: Attention) -> Attention:
    """The head shown first is the last layer's that the answer needs most, where there are few enough to try all."""
    if len(panel.layers.options) * len(panel.heads.options) > MOST_TRIED or len(panel.heads.options) < 2:
        return panel
    layer, head = judge_heads(scene, asked).deciding()
    return panel.choose(layer, panel.heads.options.index(str(head)))


def image_picture(scene: Scene, asked: Asked) -> Panels:
    """The image with each head's light and the rolled out one, what it says, filters and positions."""
    assert isinstance(scene, ImageScene)
    layers, layer = layer_axis(scene, "self", asked)
    heads = head_axis(scene, "self", asked)
    weights = received(scene, "self", layers, heads)[..., scene.first :]
    maps = weights.reshape(*weights.shape[:2], *scene.grid)
    title = f"Where it looks, by {by_whom(scene).replace('tokens', 'patches')}"
    panels: list[Panel] = [Overlay(title, scene.pixels, maps, (layer, heads)), rolled_out(scene)]
    if scene.shares:
        panels.append(shares_panel(scene))
    panels.append(filters_panel(scene, asked))
    if has_positions(scene):
        panels.append(positions_panel(scene, asked))
    return Panels(panels, [])


def words_picture(scene: Scene, asked: Asked) -> Panels:
    """For each word of a caption, where in the image it looked."""
    assert isinstance(scene, ImageScene)
    cells = scene.grid[0] * scene.grid[1]
    layers, layer = layer_axis(scene, "self", asked)
    heads = head_axis(scene, "self", asked)
    _, _, T, _ = scene.sizes(-1, "self")
    if cells >= T:
        raise WeftError("this model was trained blind, without images: there is nowhere to look")
    words = scene.written[: T - cells]
    maps = []
    for number in layers:
        each = to_array(scene.attention(number, "self", slice(cells, cells + len(words))))[..., :cells]
        both = [each.mean(0, keepdims=True), each] if heads.options[0] == "mean" else [each]
        maps.append(np.concatenate(both) if len(heads.options) > 1 else both[0])
    values = np.stack(maps).transpose(2, 0, 1, 3)
    values = values.reshape(*values.shape[:3], *scene.grid)
    first = next((place for place, word in enumerate(words) if len(word.strip()) > 2), 0)
    title = f"Where it looks for each word of: {scene.said}"
    note = f"Its caption: {scene.truth}" if isinstance(scene.truth, str) else ""
    return Panels([Overlay(title, scene.pixels, values, (Axis("word", words, first), layer, heads), note)], [])


def forecast_picture(scene: Scene, asked: Asked) -> Panels:
    """History, forecast with its band, and where the last patch looks."""
    assert isinstance(scene, SeriesScene)
    layers, layer = layer_axis(scene, "self", asked)
    heads = head_axis(scene, "self", asked)
    B, _, T, _ = scene.sizes(layers[0], "self")
    columns = []
    for batch in range(B):
        found = []
        for number in layers:
            each = to_array(scene.attention(number, "self", T - 1, batch))
            both = [each.mean(0, keepdims=True), each] if heads.options[0] == "mean" else [each]
            found.append(np.concatenate(both) if len(heads.options) > 1 else both[0])
        columns.append(np.stack(found))
    attention: Array = np.stack(columns)
    title = f"Forecast of {scene.ahead.shape[0]} steps, and where its last patch of {scene.patch} steps looks"
    panel = Forecast(
        title,
        scene.columns,
        scene.history,
        scene.ahead,
        scene.low,
        scene.high,
        attention,
        (layer, heads),
        scene.patch,
    )
    return Panels([panel], [])


def time_picture(scene: Scene, asked: Asked) -> Panels:
    """The sequence, in motion where it is a skeleton, with attention in time, and what the model says."""
    assert isinstance(scene, SequenceScene)
    layers, layer = layer_axis(scene, "self", asked)
    heads = head_axis(scene, "self", asked)
    weights = received(scene, "self", layers, heads)
    extra = weights.shape[-1] - len(scene.tokens)
    attention, choices = weights[..., max(0, extra) :], (layer, heads)
    title = f"The sequence, and how much each step is looked at, by {by_whom(scene).replace('tokens', 'steps')}"
    if scene.up is not None:
        joints = scene.values.reshape(len(scene.values), -1, 3)
        drawn: Panel = Motion(title, joints, scene.bones, attention, choices, scene.up, scene.joints)
    else:
        names = tuple(f"channel {number}" for number in range(scene.values.shape[1]))
        drawn = Channels(title, scene.values, names, attention, choices)
    return Panels([drawn, shares_panel(scene)], [])


# By the name that a task gives its picture, and by the task where two share one.
TASKS: dict[str, tuple[str, Callable[[Scene, Asked], Panels]]] = {
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
