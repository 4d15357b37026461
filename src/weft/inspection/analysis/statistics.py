"""Statistics of all heads at once, a block of rows at a time: O(H x block x S) memory, nothing T x S.

- entropy of a row: -sum_j A_ij log A_ij, in nats: 0 for one key, log n for n keys of equal weight;
- distance: sum_j A_ij |i - j|, for two sequences from the diagonal |j - i (S-1)/(T-1)|;
- column mass: sum_i A_ij, the weight that each key receives;
- sharpness: the largest weight of a row; with unit normal q, k the variance of q.k is D_K, so that without the
  scale 1/sqrt(D_K) attention starts out sharp and its gradients vanish.

A score without a softmax is measured by its shares, |A_ij| / sum_j |A_ij|.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from weft.foundation.errors import WeftError
from weft.foundation.seeds import generator
from weft.inspection.recording.attention_records import Kind, PartAttentionRecord, shares, softmax
from weft.inspection.recording.calls import RecordedCall

if TYPE_CHECKING:
    from weft.inspection.recording.watch import Seen

NUMBERS = 1 << 18  # number of weights that a block may hold at once


@dataclass(frozen=True)
class Statistics:
    """Per layer and head [L, H]: mean entropy, distance and largest weight of a row; column mass, L times [H, S].

    Rows that see no key (padding) are not counted.
    """

    kind: Kind
    layers: list[int]
    entropy: Tensor
    distance: Tensor
    largest: Tensor
    column_mass: list[Tensor]


def statistics(call: RecordedCall, kind: Kind | None = None, batch: int = 0) -> Statistics:
    """Of one text in one call."""
    kind = call.choose(kind)
    found = [_of_layer(call, layer, kind, batch) for layer in call.layers(kind)]
    entropy, distance, largest = (torch.stack([one[n] for one in found]) for n in range(3))
    return Statistics(kind, call.layers(kind), entropy, distance, largest, [one[3] for one in found])


def _of_layer(call: RecordedCall, layer: int, kind: Kind, batch: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    _, H, T, S = call.sizes(layer, kind, batch)
    slope = 1.0 if kind in ("self", "encoder") else (S - 1) / max(1, T - 1)
    totals = [torch.zeros(H, dtype=torch.float64) for _ in range(4)]
    mass: Tensor | None = None
    normalized = call.record(layer, kind, batch).normalized
    for rows in row_blocks(H, T, S):
        weights = call.maps(layer, kind, None, rows, batch, "weights")
        weights = weights if normalized else shares(weights)
        i = torch.arange(rows.start, rows.stop, device=weights.device)[:, None]
        apart = (torch.arange(S, device=weights.device) - i * slope).abs().to(weights.dtype)
        counted = (weights.sum(-1) > 0).to(weights.dtype)
        logarithms = weights.clamp(min=torch.finfo(weights.dtype).tiny).log_()
        new = (
            -logarithms.mul_(weights).sum((-2, -1)),
            (weights * apart).sum((-2, -1)),
            weights.amax(-1).sum(-1),
            counted.sum(-1),
        )
        totals = [total + part.double().cpu() for total, part in zip(totals, new, strict=True)]
        mass = weights.sum(1) if mass is None else mass + weights.sum(1)
    assert mass is not None
    count = totals[3].clamp(min=1)
    return totals[0] / count, totals[1] / count, totals[2] / count, mass


def row_blocks(H: int, T: int, S: int) -> Iterator[slice]:
    """Blocks of rows whose maps hold at most about `NUMBERS` weights at once."""
    block = max(1, NUMBERS // max(1, H * S))
    return (slice(first, min(first + block, T)) for first in range(0, T, block))


@dataclass(frozen=True)
class Sharpness:
    """The mean largest weight of a row with and without the scale 1/sqrt(D_K), [L, H]; `uniform`: of equal weights.

    `variance`: of q.k, [L, H]; D_K for unit normal queries and keys.
    """

    scaled: Tensor
    unscaled: Tensor
    uniform: float
    variance: Tensor


def sharpness(seen: Seen, kind: Kind | None = None, batch: int = 0, call: int = -1) -> Sharpness:
    """Of a recorded call, most informative for a model that has just been built."""
    one = seen.call(call)
    kind = one.choose(kind)
    found = [_sharpness_of(one, layer, kind, batch) for layer in one.layers(kind)]
    scaled, unscaled, variance, uniform = zip(*found, strict=True)
    return Sharpness(torch.stack(scaled), torch.stack(unscaled), uniform[0], torch.stack(variance))


def _sharpness_of(call: RecordedCall, layer: int, kind: Kind, batch: int) -> tuple[Tensor, Tensor, Tensor, float]:
    record = call.layer_record(layer, kind).records[0][1]
    if isinstance(record, PartAttentionRecord) and record.score.fusable != "plain":
        raise WeftError(
            f"the score {record.score.kind} is no softmax of q.k: only those are compared with and without 1/sqrt(D_K)"
        )
    _, H, T, S = call.sizes(layer, kind, batch)
    query, key, _ = call.vectors(layer, kind, batch)
    root = math.sqrt(query.shape[-1])
    sums = torch.zeros(4, H, dtype=torch.float64)
    squares, pairs, uniform = torch.zeros(H, dtype=torch.float64), 0, 0.0
    for rows in row_blocks(H, T, S):
        hidden = call.maps(layer, kind, None, rows, batch, "scores").isneginf()
        products = query[:, rows] @ key.transpose(-2, -1)
        for n, scores in enumerate((products / root, products)):
            sums[n] += softmax(scores.masked_fill(hidden, float("-inf"))).amax(-1).sum(-1).double().cpu()
        shown = products.masked_fill(hidden, 0.0).double().cpu()
        sums[2] += shown.sum((-2, -1))
        squares += shown.square().sum((-2, -1))
        pairs += int((~hidden[0]).sum())
        uniform += float((1 / (~hidden[0]).sum(-1).clamp(min=1)).sum())
    variance = squares / max(1, pairs) - (sums[2] / max(1, pairs)).square()
    return sums[0] / T, sums[1] / T, variance, uniform / T


def initial_sharpness(spec: Any, length: int = 64, seed: int = 0) -> Sharpness:
    """Of a model as it is built (a preset's name or a spec of tokens), on random tokens, before any training."""
    from weft.foreign.recognize import subject_of
    from weft.foreign.subject import SubjectCall
    from weft.inspection.recording.watch import watch
    from weft.models.build import build

    module = build(spec, seed=seed).eval()
    subject, random = subject_of(module), generator(seed, "sharpness")
    asked = SubjectCall(subject.content(1, length, random), source=subject.source(1, length, random))
    asked.content = asked.content.float() if asked.content.is_floating_point() else asked.content
    if asked.source is not None and asked.source.is_floating_point():
        asked.source = asked.source.float()
    with torch.no_grad(), watch(module) as seen:
        subject.run(asked)
    return sharpness(seen)


def unit_sharpness(head_width: int, keys: int = 64, rows: int = 256, seed: int = 0) -> Sharpness:
    """The lecture's case: unit normal queries and keys of D_K numbers, `keys` keys, [1, 1]."""
    random = generator(seed, "unit sharpness")
    query, key = (torch.randn(n, head_width, generator=random, dtype=torch.float64) for n in (rows, keys))
    products = query @ key.T
    scaled, unscaled = (e.softmax(-1).amax(-1).mean()[None, None] for e in (products / math.sqrt(head_width), products))
    return Sharpness(scaled, unscaled, 1 / keys, products.var()[None, None])
