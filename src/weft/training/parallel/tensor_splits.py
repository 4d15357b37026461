"""How tensor parallelism divides each weight of a model: rules per kind of part, without any process.

    columns   y_r = f(x W_r):      up-projections, queries, keys, values: rows of W by heads or hidden units
    rows      y = sum_r y_r W_r:   down- and output projections: columns of W by the same heads or hidden units

Queries, keys and values are one product, and so are gate and up: each of these sections is divided by itself, never
the fused rows as they stand. What no rule names is whole on every process (recurrence, convolutions, routers).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from weft.foundation.errors import WeftError
from weft.parts.attention import CrossAttention, SelfAttention
from weft.parts.embeddings import TokenEmbedding
from weft.parts.experts import Experts
from weft.parts.feedforward import FeedForward, GatedFeedForward
from weft.parts.linear_attention import LinearAttention
from weft.parts.lora import AdaptedLinear
from weft.parts.norms import Norm
from weft.parts.outputs import LanguageHead
from weft.parts.stack import Stack

Sections = tuple[int, ...]

# What a process sees of a weight, and what its gradient is there:
#   own      its part of the weight
#   whole    all of it, used for the same on every process: every gradient is whole
#   partial  all of it, used for other tokens or heads on each process: gradients are summed
#   once     all of it on the first process, zeros on the others: a bias that is added before outputs are summed
#   table    all of it, gathered from the rows that each process holds
View = Literal["own", "whole", "partial", "once", "table"]


@dataclass(frozen=True)
class WeightSplit:
    """Along `dim` (None: every process has all of it), each of the `sections` of its rows by itself."""

    view: View
    dim: int | None = None
    sections: Sections = ()


WHOLE, PARTIAL, ONCE = WeightSplit("whole"), WeightSplit("partial"), WeightSplit("once")
Named = Iterator[tuple[str, WeightSplit]]


def split_weights(model: nn.Module, count: int) -> dict[str, WeightSplit]:
    """The split of every weight of a model over `count` processes; refused where something does not divide."""
    found = {name: WHOLE for name, _ in model.named_parameters()}
    whole = {id(part) for experts in model.modules() if not _divides(experts, count) for part in experts.modules()}
    for name, part in model.named_modules():
        rule = next((rule for kind, rule in _RULES if isinstance(part, kind)), None)
        if rule is None or id(part) in whole:
            continue
        for own, split in rule(part, count):
            found[f"{name}.{own}" if name else own] = split
    return {name: split for name, split in found.items() if name in dict(model.named_parameters())}


def fused_sections(model: nn.Module) -> dict[str, Sections]:
    """The weights that are several products in one, with the number of rows of each."""
    return {name: split.sections for name, split in split_weights(model, 1).items() if split.sections}


def interleaved(sections: Sections, count: int) -> Tensor:
    """The order of fused rows in which the part of each of `count` processes is one stretch: its share of each section.

    Sections of 4 and 2 rows over 2 processes: 0 1 4, 2 3 5.
    """
    starts = [sum(sections[:place]) for place in range(len(sections))]
    stretches = [
        torch.arange(start + rank * size // count, start + (rank + 1) * size // count)
        for rank in range(count)
        for start, size in zip(starts, sections, strict=True)
    ]
    return torch.cat(stretches)


def _columns(name: str, linear: nn.Module, sections: Sections = ()) -> Named:
    """A linear map whose outputs are divided; an adapter's first matrix is shared, its second divided."""
    own = WeightSplit("own", 0, sections)
    yield from ((f"{name}.weight", own), (f"{name}.bias", own))
    if isinstance(linear, AdaptedLinear):
        yield from ((f"{name}.first", PARTIAL), (f"{name}.second", own))


def _rows(name: str, linear: nn.Module) -> Named:
    """A linear map whose inputs are divided and whose outputs are summed: its bias counts once."""
    yield from ((f"{name}.weight", WeightSplit("own", 1)), (f"{name}.bias", ONCE))
    if isinstance(linear, AdaptedLinear):
        yield from ((f"{name}.first", WeightSplit("own", 1)), (f"{name}.second", PARTIAL))


def _expect_divisible(number: int, count: int, what: str, field: str) -> None:
    if number % count:
        raise WeftError(
            f"tp={count} cannot split {number} {what} evenly: choose tp so that it divides them, or set {field}"
        )


def _attention(part: Any, count: int) -> Named:
    _expect_divisible(part.heads, count, "heads", "mixer.heads")
    _expect_divisible(part.key_heads, count, "key heads", "mixer.key_heads")
    if isinstance(part, SelfAttention):
        yield from _columns("qkv", part.qkv, tuple(part.sections))
    else:
        yield from _columns("query", part.query)
        yield from _columns("key_value", part.key_value, tuple(part.sections))
    yield from _rows("output", part.output)
    for own in ("query_norm", "key_norm"):
        for name, _ in getattr(part, own).named_parameters() if getattr(part, own) is not None else ():
            yield f"{own}.{name}", PARTIAL
    for name, weight in part.score.named_parameters():
        per_head = weight.dim() > 0 and part.heads > 1 and weight.shape[0] == part.heads
        yield f"score.{name}", WeightSplit("own", 0) if per_head else PARTIAL


def _linear_attention(part: LinearAttention, count: int) -> Named:
    _expect_divisible(part.heads, count, "heads", "mixer.heads")
    yield from _columns("qkv", part.qkv, (part.heads * part.head_width,) * 3)
    yield from _rows("output", part.output)


def _feedforward(part: FeedForward, count: int) -> Named:
    hidden = part.down.in_features
    _expect_divisible(hidden, count, "hidden units", "feedforward.hidden")
    yield from _columns("up", part.up)
    yield from _rows("down", part.down)


def _gated(part: GatedFeedForward, count: int) -> Named:
    hidden = part.down.in_features
    _expect_divisible(hidden, count, "hidden units", "feedforward.hidden")
    yield from _columns("gate_up", part.gate_up, (hidden, hidden))
    yield from _rows("down", part.down)


def _divides(part: nn.Module, count: int) -> bool:
    """Whether a part can be divided: experts only by their number, else every process has all of them, with the one
    that all tokens share.
    """
    return not isinstance(part, Experts) or part.experts % count == 0


def _experts(part: Experts, count: int) -> Named:
    """Each process has some experts whole; the router is whole on all."""
    yield from (("up", WeightSplit("own", 0)), ("down", WeightSplit("own", 0)))


def _stack(part: Stack, count: int) -> Named:
    """Norms between the parts of a block see a stretch of tokens each; positions inside attention see some heads."""
    for number, block in enumerate(part.blocks):
        for name, own in block.named_children():
            if isinstance(own, Norm):
                yield from ((f"blocks.{number}.{name}.{weight}", PARTIAL) for weight, _ in own.named_parameters())
    for name in ("norm", "position"):
        own = getattr(part, name)
        if own is not None:
            yield from ((f"{name}.{weight}", PARTIAL) for weight, _ in own.named_parameters())


def _table(part: TokenEmbedding, count: int) -> Named:
    if part.vocabulary % count == 0:
        yield "weight", WeightSplit("table", 0)


def _language_head(part: LanguageHead, count: int) -> Named:
    if part.vocabulary % count == 0:
        yield from (("linear.weight", WeightSplit("table", 0)), ("linear.bias", WeightSplit("table", 0)))


_RULES: tuple[tuple[type | tuple[type, ...], Callable[[Any, int], Named]], ...] = (
    (Stack, _stack),
    ((SelfAttention, CrossAttention), _attention),
    (LinearAttention, _linear_attention),
    (FeedForward, _feedforward),
    (GatedFeedForward, _gated),
    (Experts, _experts),
    (TokenEmbedding, _table),
    (LanguageHead, _language_head),
)
