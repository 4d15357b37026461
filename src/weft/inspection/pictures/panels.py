"""Panels of what was seen: attention maps, the tokens that are looked at, two words' queries and keys, shares."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from weft.figures.panels.attention import AttentionPanel
from weft.figures.panels.bars import BarsPanel, single_bars
from weft.figures.panels.maps import MEAN, TopWeightMaps, all_heads_fit, collect_maps
from weft.figures.panels.pairs import QueryKeyPanel
from weft.figures.panels.panel import Axis, Panel
from weft.figures.panels.tokens import TokensPanel
from weft.foundation.errors import WeftError
from weft.foundation.files.json_text import as_whole_number
from weft.inspection.analysis.rollout import other_mixers
from weft.inspection.pictures.look_options import LookOptions
from weft.inspection.pictures.observation import Observation
from weft.inspection.recording.attention_records import Kind
from weft.models.encoder import EncoderSpec

Array = NDArray[np.float32]
MAP_SETS_PER_PAGE = 3  # sets of maps that may share one page
TITLES: dict[Kind, str] = {
    "self": "Attention: who looks at whom",
    "encoder": "Attention inside the encoder",
    "cross": "Attention from what is written to the source",
    "alignment": "Attention from what is written to the source",
}


@dataclass(frozen=True)
class Panels:
    """Panels, and what was left out of them."""

    panels: list[Panel]
    left_out: list[str]


def to_array(values: Tensor) -> Array:
    """On the CPU, 32 bits."""
    found: Array = values.detach().float().cpu().numpy()
    return found


def layer_axis(observation: Observation, kind: Kind, options: LookOptions) -> tuple[list[int], Axis]:
    """The layers that have attention, and the axis to choose one; the last is shown first."""
    layers = observation.layers(kind)
    chosen = len(layers) - 1
    if options.layer is not None:
        wanted = layers[-1] if options.layer == -1 else options.layer
        if wanted not in layers:
            known = ", ".join(map(str, layers))
            raise WeftError(f"layer {options.layer} has no {kind} attention: choose --layer among {known}")
        chosen = layers.index(wanted)
    return layers, Axis("layer", tuple(map(str, layers)), chosen, _without_attention(observation, kind))


def _without_attention(observation: Observation, kind: Kind) -> str:
    """The layers that have no heads to choose, and what they are instead."""
    found: dict[str, list[str]] = {}
    for layer, words in other_mixers(observation.seen, kind, observation.call):
        found.setdefault(words, []).append(str(layer))
    each = [f"layer{'s' * (len(own) > 1)} {', '.join(own)}: {words}" for words, own in found.items()]
    return f"Without attention: {'; '.join(each)}." if each else ""


def head_axis(observation: Observation, kind: Kind, options: LookOptions, mean: bool = True) -> Axis:
    """The mean over heads, then each head; layers may have different numbers of heads, then the mean alone."""
    counts = {observation.sizes(layer, kind)[1] for layer in observation.layers(kind)}
    if len(counts) > 1:
        return Axis("head", (MEAN,))
    (count,) = counts
    if options.head is not None and not 0 <= options.head < count:
        raise WeftError(f"there is no head {options.head}: choose --head from 0 to {count - 1}")
    names = tuple(map(str, range(count)))
    if count == 1 or not mean:
        return Axis("head", names, options.head or 0)
    return Axis("head", (MEAN, *names), 0 if options.head is None else options.head + 1)


def attention_panel(
    observation: Observation, kind: Kind, options: LookOptions, focus: int | None = None, room: int = MAP_SETS_PER_PAGE
) -> tuple[AttentionPanel, list[str]]:
    """The maps of one kind by layer and head, and sentences on what of long ones is left out."""
    layers, layer = layer_axis(observation, kind, options)
    heads = head_axis(observation, kind, options)
    rows, columns = observation.labels(kind)
    left_out = []
    if options.row is not None:
        focus = find_token(rows, options.row)
    if len(heads.options) > 1 and not all_heads_fit(len(layers), len(heads.options) - 1, len(rows), room):
        if options.layer is not None:
            layers, layer = [layers[layer.chosen]], Axis("layer", (layer.options[layer.chosen],))
            left_out.append("Other layers: so many maps do not fit into one page.")
        if not all_heads_fit(len(layers), len(heads.options) - 1, len(rows), room):
            heads = Axis("head", (MEAN,))
            left_out.append("Single heads, of which there are too many for one page; look at one layer with --layer.")

    def block(number: int, first: int, last: int) -> Array:
        return to_array(observation.attention(layers[number], kind, slice(first, last)))

    maps = collect_maps(len(layers), heads.options, (len(rows), len(columns)), block, room)
    if isinstance(maps, TopWeightMaps):
        k = maps.weights.shape[3]
        left_out.append(
            f"Weights beyond the {k} largest of each row: {len(rows):,} x {len(columns):,} maps do not fit into one "
            f"page. Those shown hold {maps.kept:.1%} of all attention; the small maps are means over whole ones."
        )
    panel = AttentionPanel(TITLES[kind], rows, columns, layer, heads, maps, "", focus)
    if focus is not None and options.layer is None and options.head is None:
        panel = panel.choose(*most_focused_head(panel, focus))
    return panel, left_out


def most_focused_head(panel: AttentionPanel, row: int) -> tuple[int, int]:
    """The layer and head in which this token looks most at one other token, as `focus_elsewhere` counts."""
    best, found = (-1.0, -1.0, -1.0), (panel.layers.chosen, panel.heads.chosen)
    for layer in range(len(panel.layers.options)):
        for head in range(len(panel.heads.options)):
            if panel.heads.options[head] == MEAN and len(panel.heads.options) > 1:
                continue
            most = focus_elsewhere(panel.maps.row(layer, head, row), row if panel.itself else None)
            if most > best:
                best, found = most, (layer, head)
    return found


def most_focused_layer_and_head(
    observation: Observation, kind: Kind, row: int, layers: Sequence[int] | None = None
) -> tuple[int, int]:
    """The same without a panel: the number of a layer, and a head."""
    best, found = (-1.0, -1.0, -1.0), (observation.layers(kind)[-1], 0)
    for layer in layers or observation.layers(kind):
        for head, weights in enumerate(to_array(observation.attention(layer, kind, row))):
            most = focus_elsewhere(weights, row if kind in ("self", "encoder") else None)
            if most > best:
                best, found = most, (layer, head)
    return found


def focus_elsewhere(weights: Array, row: int | None) -> tuple[float, float, float]:
    """The largest weight [S] on a token that is neither itself (`row`), nor beside it, nor the first; then less strict.

    The first token (often a start token) is where heads rest that look for nothing, attention sinks (Xiao et al. 2023),
    and many heads look at the token before whatever it is: those beside count only where there is no other, the first
    one last of all. Of another text, such as a source, every token counts.
    """
    if row is None:
        return (float(weights.max()),) * 3
    others = weights.copy()
    others[row : row + 1] = 0.0
    far = others.copy()
    far[max(0, row - 1) : row + 2] = 0.0
    return float(far[1:].max(initial=0.0)), float(others[1:].max(initial=0.0)), float(others.max())


def find_token(tokens: Sequence[str], wanted: str) -> int:
    """The place of a token: its number, or the token itself, the last one if there are several."""
    number = as_whole_number(wanted)
    if number is not None and number < len(tokens) and wanted not in tokens:
        return number
    for same in (str, str.lower):
        places = [place for place, token in enumerate(tokens) if same(token.strip()) == same(wanted.strip())]
        if places:
            return places[-1]
    shown = ", ".join(token.strip() for token in tokens[:30])
    raise WeftError(
        f"there is no token {wanted!r} in this input: choose one of {shown}, or a number below {len(tokens)}"
    )


def received(observation: Observation, kind: Kind, layers: Sequence[int], heads: Axis) -> Array:
    """How much each token is looked at [layers, heads, S]: by the class token or last token, else on average."""
    pool = observation.pool or "mean"
    found = []
    statistics = observation.seen.statistics(kind, observation.batch, observation.call) if pool == "mean" else None
    each: Array
    for number, layer in enumerate(layers):
        _, _, T, _ = observation.sizes(layer, kind)
        if statistics is not None:
            each = to_array(statistics.column_mass[number] / T)
        else:
            each = to_array(observation.attention(layer, kind, 0 if pool == "first" else T - 1))
        mean = each.mean(0, keepdims=True)
        if heads.options == (MEAN,):
            found.append(mean)
        else:
            found.append(np.concatenate([mean, each]) if heads.options[0] == MEAN else each)
    return np.stack(found)


def by_whom(observation: Observation) -> str:
    """Who looks, in words."""
    spec = getattr(observation.seen.module, "spec", None)
    if observation.pool == "first" and isinstance(spec, EncoderSpec) and spec.input.kind == "vectors":
        # Of texts the first token is the tokenizer's own; of vectors it is one of them, unless the model adds another.
        return "the class token" if spec.class_token else "the first one"
    words = {"first": "the class token", "last": "the last token", "mean": "all tokens on average"}
    return words[observation.pool or "mean"]


def tokens_panel(observation: Observation, options: LookOptions) -> TokensPanel:
    """Tokens colored by how much is looked at them, their tags below."""
    layers, layer = layer_axis(observation, "self", options)
    heads = head_axis(observation, "self", options)
    weights = received(observation, "self", layers, heads)
    tokens = observation.labels("self")[1]
    below = tuple(f"{tag} {share:.2f}" if tag else "" for tag, share in observation.tags)
    below = below if len(below) == len(tokens) else ()
    title = f"How much each token is looked at, by {by_whom(observation)}"
    return TokensPanel(title, tokens, weights, (layer, heads), below)


def shares_panel(observation: Observation) -> BarsPanel:
    """What the model says of the whole, with probabilities."""
    truth = f" (it is {observation.truth})" if isinstance(observation.truth, str) else ""
    names, values = tuple(observation.shares), np.array(list(observation.shares.values()), dtype=np.float32)
    return single_bars(f"The model says: {observation.said}{truth}", names, values)


def pair_panel(observation: Observation, options: LookOptions) -> QueryKeyPanel:
    """Queries, keys, scores and weights of two words, both ways, in all layers and heads."""
    tokens = observation.labels("self")[0]
    if options.pair is not None:
        one, other = (find_token(tokens, word) for word in options.pair)
    else:
        one, other = closest_pair(observation)
    layers, layer = layer_axis(observation, "self", options)
    heads = head_axis(observation, "self", options, mean=False)
    if heads.options == (MEAN,):
        raise WeftError("the layers have different numbers of heads: choose words by --kind attention instead")
    ways = ((one, other), (other, one))
    query, key, scores, weights = [], [], [], []
    for number in layers:
        queries, keys, _ = observation.vectors(number, "self")
        both = [one, other]
        before, after = observation.scores(number, "self", both), observation.attention(number, "self", both)
        query.append(torch.stack([queries[:, row] for row, _ in ways]))
        key.append(torch.stack([keys[:, column] for _, column in ways]))
        scores.append(torch.stack([before[:, place, column] for place, (_, column) in enumerate(ways)]))
        weights.append(torch.stack([after[:, place, column] for place, (_, column) in enumerate(ways)]))
    names = tuple(f"{tokens[row].strip()} looks at {tokens[column].strip()}" for row, column in ways)
    q, k, e, a = (to_array(torch.stack(each, 1)) for each in (query, key, scores, weights))
    title = f"Two words: {tokens[one].strip()} and {tokens[other].strip()}"
    found = QueryKeyPanel(title, Axis("way", names), layer, heads, q, k, e, a)
    return found if options.layer is not None or options.head is not None else found.strongest()


def closest_pair(observation: Observation) -> tuple[int, int]:
    """The two different tokens of which one looks most at the other, which is not the first if there are more."""
    best, found = -1.0, (0, 0)
    for layer in observation.layers("self"):
        _, _, T, _ = observation.sizes(layer, "self")
        for first in range(0, T, 128):
            weights = observation.attention(layer, "self", slice(first, min(T, first + 128))).clone()
            weights.diagonal(first, 1, 2).zero_()
            if T > 2:
                weights[..., 0] = 0.0
            value, place = weights.flatten().max(0)
            if float(value) > best:
                _, row, column = np.unravel_index(int(place), tuple(weights.shape))
                best, found = float(value), (first + int(row), int(column))
    return found


def odd_tag(observation: Observation) -> int | None:
    """The token whose tag is the rarest of its sentence, where one stands out."""
    counts = Counter(tag for tag, _ in observation.tags if tag)
    if len(counts) < 2 or min(counts.values()) > 1:
        return None
    rare = [place for place, (tag, _) in enumerate(observation.tags) if counts[tag] == 1]
    rows = observation.labels("self")[0]
    shift = len(rows) - len(observation.tags)
    return rare[0] + shift if len(rare) == 1 else None
