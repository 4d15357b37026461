"""Alignment: which source token each target token looks at, by recurrent attention or by a layer of a transformer.

The layer is the one that the run chose on held-out sentences (`tasks.support.cross_alignment`); for a model without a
run it is chosen in the same way on the text itself, for models of other libraries a head is chosen by `aligning`.

Alignment error rate (Och and Ney 2003): AER = 1 - (|A and S| + |A and P|) / (|A| + |S|), with links A found, sure links
S and possible links P. A links each target token to its best source. Where gold gives several sources for a target
token (each letter of a month's name), any of them counts, so AER is the share of target tokens that miss.
"""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from weft.foundation.errors import WeftError
from weft.inspection.recording.attention_records import Kind
from weft.models.encoder_decoder import EncoderDecoder
from weft.tasks.support.language.cross_alignment import AlignmentLayer, choose_layer

if TYPE_CHECKING:
    from weft.inspection.recording.watch import Seen

Gold = Sequence[AbstractSet[int]]  # for each target token its source tokens; empty where unknown


@dataclass(frozen=True)
class Alignment:
    """The map (T, S), whose it is, its score (see `aligning`) and its error if known.

    `layer` and `head` are None for the mean over all.
    """

    map: Tensor
    kind: Kind
    layer: int | None
    head: int | None
    score: float
    error: float | None


@dataclass(frozen=True)
class AlignmentChoice:
    """The best head, and the table [L, H] by which it was chosen: mean error (with gold), else mean score."""

    kind: Kind
    layer: int
    head: int
    layers: list[int]
    table: Tensor


def alignment_error_rate(map: Tensor, gold: Gold, sure: Gold | None = None) -> float:
    """AER of the best source of each row; rows without gold do not count.

    With separate `sure` links, `gold` are the possible ones and all sure links are to be found.
    """
    best = map.argmax(-1).tolist()
    rows = [t for t, links in enumerate(gold) if links and t < len(best)]
    possible = sum(best[t] in gold[t] for t in rows)
    if sure is None:
        return 1 - possible / len(rows) if rows else 0.0
    count = sum(len(links) for links in sure)
    hits = sum(best[t] in links for t, links in enumerate(sure) if t < len(best))
    return 1 - (hits + possible) / (len(rows) + count) if rows or count else 0.0


def aligning(map: Tensor) -> float:
    """How much a map looks like an alignment, 0 to 1: how sharp its rows are, times how many columns they find.

    A head that always looks at the last token is sharp but finds one column only.
    """
    if not map.numel():
        return 0.0
    found = len(set(map.argmax(-1).tolist()))
    return float(map.amax(-1).mean()) * found / min(map.shape)


def best_head(
    seen: Seen, gold: Sequence[Gold] | None = None, layer: int | None = None, call: int = -1
) -> AlignmentChoice:
    """The cross-attention head (of one layer, or of all) that aligns best over all texts of a call.

    By its error with gold (one per text), else by `aligning`. Choose on some texts, evaluate on others.
    """
    one = seen.call(call)
    kind = _kind(seen, call)
    layers = one.layers(kind) if layer is None else [one.layer_record(layer, kind).layer]
    texts = range(len(one.texts()) if gold is None else len(gold))
    table = []
    for own in layers:
        maps = [seen.attention(own, batch=text, kind=kind, call=call) for text in texts]
        found = [[_rate_map(head, None if gold is None else gold[text]) for head in maps[text]] for text in texts]
        table.append(torch.tensor(found, dtype=torch.float64).mean(0))
    whole = torch.stack(table)
    place = int(whole.argmax() if gold is None else whole.argmin())
    return AlignmentChoice(kind, layers[place // whole.shape[1]], place % whole.shape[1], layers, whole)


def _rate_map(map: Tensor, gold: Gold | None) -> float:
    return aligning(map) if gold is None else alignment_error_rate(map, gold)


def align(
    seen: Seen,
    batch: int = 0,
    gold: Gold | None = None,
    layer: int | None = None,
    head: int | None = None,
    call: int = -1,
) -> Alignment:
    """One text's alignment: by the head asked for, else by what aligns best (chosen without gold).

    Row t stands for the t-th token written. Recurrent attention has one head.
    """
    kind, one = _kind(seen, call), seen.call(call)
    chosen = aligning_layer(seen, batch, call) if layer is None and head is None else None
    if chosen is not None:
        maps = [seen.attention(number, batch=batch, kind=kind, call=call) for number in one.layers(kind)]
        map = chosen.read(maps)
        layer = chosen.layer
    else:
        if head is None:
            choice = best_head(seen, layer=layer, call=call)
            layer, head = choice.layer, choice.head
        layer = one.layer_record(-1 if layer is None else layer, kind).layer
        map = seen.attention(layer, head, batch=batch, kind=kind, call=call)
    error = None if gold is None else alignment_error_rate(map, gold)
    return Alignment(map, kind, layer, head, aligning(map), error)


def aligning_layer(seen: Seen, batch: int = 0, call: int = -1) -> AlignmentLayer | None:
    """The layer that a run chose on held-out sentences, else the one chosen on this text.

    None for recurrent models, which have one map, for models of other libraries, and where some layers were not kept.
    """
    one, module = seen.call(call), seen.module
    if _kind(seen, call) != "cross" or not isinstance(module, EncoderDecoder):
        return None
    if one.layers("cross") != list(range(len(module.decoder.blocks))):
        return None
    stored: AlignmentLayer | None = getattr(getattr(seen.subject, "task", None), "alignment_layer", None)
    if stored is not None:
        return stored
    source, target = (
        next((ids.tolist() for ids in seen.inputs(batch, call, side).values() if ids.dim() == 1), None)
        for side in ("source", "target")
    )
    return None if source is None or target is None else choose_layer(module, [(source, target)])


def gold_of_tokens(gold: Gold, target: Sequence[tuple[int, int]], source: Sequence[tuple[int, int]]) -> list[set[int]]:
    """Gold links between characters as links between tokens, each token given by the characters first .. last - 1."""
    found = []
    for first, last in target:
        letters = {place for t in range(first, min(last, len(gold))) for place in gold[t]}
        found.append({s for s, (a, b) in enumerate(source) if any(a <= place < b for place in letters)})
    return found


def _kind(seen: Seen, call: int) -> Kind:
    kinds = seen.call(call).kinds
    for kind in ("alignment", "cross"):
        if kind in kinds:
            return kind
    raise WeftError("nothing to align: the model has no attention from a target to a source")
