"""Causes inside attention: what queries, keys, scores and masks of two models say about why they diverge."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from weft.foundation.errors import WeftError
from weft.inspection.comparison.activation_trace import apart
from weft.inspection.recording.attention_records import AttentionRecord, Kind, PartAttentionRecord
from weft.inspection.recording.calls import LayerRecord, RecordedCall
from weft.parts.relative import Rotary, rotate_pairs
from weft.parts.token_positions import TokenPositions

if TYPE_CHECKING:
    from weft.inspection.comparison.causes import Cause, Divergence

FAR = -1e8  # scores below are masked, whether by -inf or by a large number
BASES = (1e3, 1e4, 1e5, 5e5, 1e6, 1e7)


def attention_cause(p: Divergence) -> Cause | None:
    """The cause inside the attention where they diverge; None where there is none or it agrees."""
    pair = _records(p)
    if pair is None:
        return None
    (call_a, a), (call_b, b) = pair
    try:
        return _compare(p, call_a, a, call_b, b)
    except (WeftError, NotImplementedError, RuntimeError):
        return None


def _records(p: Divergence) -> tuple[tuple[RecordedCall, LayerRecord], tuple[RecordedCall, LayerRecord]] | None:
    """The attention that a path belongs to, and its counterpart: the same kind and layer in the other model."""
    if not p.one.seen.calls or not p.two.seen.calls:
        return None
    mine, theirs = p.one.seen.call(), p.two.seen.call()
    for key, layer in mine.layer_records.items():
        if _belongs(p.a.path, layer.path) and key in theirs.layer_records:
            return (mine, layer), (theirs, theirs.layer_records[key])
    return None


def _belongs(path: str, attention: str) -> bool:
    """Whether a part is inside an attention, or is its neighbor in the same module."""
    parent = attention.rpartition(".")[0]
    return path == attention or path.startswith(f"{attention}.") or (bool(parent) and path.startswith(f"{parent}."))


def _compare(p: Divergence, call_a: RecordedCall, a: LayerRecord, call_b: RecordedCall, b: LayerRecord) -> Cause | None:
    kind: Kind = a.kind
    scores = [c.maps(r.layer, kind, None, None, 0, "scores") for c, r in ((call_a, a), (call_b, b))]
    vectors = [c.vectors(r.layer, kind, 0) for c, r in ((call_a, a), (call_b, b))]
    if scores[0].shape != scores[1].shape:
        return "shape", f"maps of {tuple(scores[0].shape)} in a and {tuple(scores[1].shape)} in b ({a.path})"
    hidden = [(s < FAR) for s in scores]
    if not torch.equal(hidden[0], hidden[1]):
        return "mask", _masks(hidden[0], hidden[1], a.path)
    shown = [s.masked_fill(hidden[0], 0.0) for s in scores]
    same_vectors = [p.same(x, y) for x, y in zip(vectors[0], vectors[1], strict=True)]
    if not p.same(shown[0], shown[1]):
        found = _ratio(p, shown, vectors, a.path) if same_vectors[0] and same_vectors[1] else None
        return found or _rotated(p, a, vectors) or _by_distance(p, shown, a.path)
    if not same_vectors[2]:
        order = _order(p, vectors[0][2], vectors[1][2])
        return ("head order", f"b's value heads stand in the order {order} of a's ({a.path})") if order else None
    return None


def _masks(a: Tensor, b: Tensor, path: str) -> str:
    """Which model sees more pairs, and where."""
    T, S = a.shape[-2:]
    i, j = torch.arange(T)[:, None], torch.arange(S)[None]
    said = []
    for who, more in (("b", a & ~b), ("a", b & ~a)):
        pairs = more.any(0)
        if bool(pairs.any()):
            ahead = bool((pairs & (j > i)).any())
            behind = bool((pairs & (j <= i)).any())
            where = "the future" if ahead and not behind else "farther back" if behind and not ahead else "both ways"
            said.append(f"{who} sees {int(pairs.sum())} pairs that the other hides ({where})")
    return f"{', '.join(said)} ({path})"


def _ratio(p: Divergence, shown: list[Tensor], vectors: list[Any], path: str) -> Cause | None:
    x, y = shown[0].double(), shown[1].double()
    factor = float((x * y).sum() / x.square().sum().clamp(min=1e-300))
    if not p.same(x * factor, y):
        return None
    K = vectors[0][0].shape[-1]
    known = {"sqrt(D_K)": math.sqrt(K), "1/sqrt(D_K)": 1 / math.sqrt(K), "1/D_K": 1 / K, "D_K": float(K)}
    name = next((f" = {name}" for name, value in known.items() if abs(value - factor) < 1e-6 * value), "")
    return "score scale", f"b's scores are {factor:.6g}{name} times a's, D_K = {K} ({path})"


def _rotated(p: Divergence, layer: LayerRecord, vectors: list[Any]) -> Cause | None:
    """Rotary positions with another offset, base or layout: rotate a's queries again and compare them with b's."""
    query, other = vectors[0][0], vectors[1][0]
    if query.shape != other.shape or apart(query.norm(dim=-1), other.norm(dim=-1)) > 1e-6:
        return None
    record = layer.records[0][1]
    raw = _unrotated(record, query)
    otherwise = ("positions", f"queries have equal norms but other directions: another rotation ({layer.path})")
    if raw is None:
        return otherwise
    rotary, token_positions = record.context.position, record.context.queries  # type: ignore[attr-defined]
    t = token_positions.positions[:1]
    for k in (1, -1, 2, -2, 3, -3, 4, -4):
        if p.same(rotate_pairs(raw, *rotary.angles(t + k, raw.dtype))[0], other):
            return "position offset", f"b's positions are a's {k:+d} ({layer.path})"
    for base in BASES:
        changed = Rotary(query.shape[-1], base)
        changed.width = rotary.width
        if p.same(rotate_pairs(raw, *changed.angles(t, raw.dtype))[0], other):
            return "rotary base", f"{rotary.base:g} in a, {base:g} in b ({layer.path})"
    R = rotary.width
    order = torch.arange(R).view(2, R // 2).T.flatten()
    mixed = torch.cat((raw[..., :R][..., order.argsort()], raw[..., R:]), -1)
    rotated = rotate_pairs(mixed, *rotary.angles(t, raw.dtype))
    if p.same(torch.cat((rotated[..., :R][..., order], rotated[..., R:]), -1)[0], other):
        return "rotary layout", f"a rotates pairs (i, i + {R // 2}), b neighbors (2i, 2i + 1) ({layer.path})"
    return otherwise


def _unrotated(record: AttentionRecord, query: Tensor) -> Tensor | None:
    """[1, H, T, K]: queries before Weft's rotary positions rotated them; None for other positions."""
    if not isinstance(record, PartAttentionRecord) or not isinstance(record.context.position, Rotary):
        return None
    token_positions: TokenPositions = record.context.queries
    cos, sin = record.context.position.angles(token_positions.positions[:1], query.dtype)
    return rotate_pairs(query[None], cos, -sin)


def _by_distance(p: Divergence, shown: list[Tensor], path: str) -> Cause | None:
    """A bias that depends on i - j only."""
    difference = shown[1] - shown[0]
    T, S = difference.shape[-2:]
    for d in range(-(T - 1), S):
        line = difference.diagonal(d, -2, -1)
        line = line[:, line.abs().amax(0) > 0]
        if line.numel() and float((line - line[:, :1]).abs().max()) > 1e-6 * float(difference.abs().max()):
            return "scores", f"scores differ by up to {float(difference.abs().max()):.3g} ({path})"
    most = float(difference.abs().max())
    return "position bias", f"scores differ by a function of the distance, up to {most:.3g} ({path})"


def _order(p: Divergence, a: Tensor, b: Tensor) -> list[int] | None:
    """For each of b's heads the equal one of a's, if all are found."""
    found = [next((n for n in range(len(a)) if p.same(a[n], head)), -1) for head in b]
    return found if -1 not in found and found != list(range(len(a))) else None
