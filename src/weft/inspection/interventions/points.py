"""Intervention points: the places in a model where an intervention can act, and how each is reached.

Weft's own parts are reached through `weft.parts.observer`; heads of other libraries, and torch's embeddings, through
function overrides.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from weft.foundation.errors import WeftError
from weft.inspection.recording.attention_names import AttentionNames
from weft.inspection.recording.attention_records import Kind
from weft.inspection.recording.calls import TextSide
from weft.inspection.recording.foreign_attention import KERNEL
from weft.inspection.recording.function_overrides import FunctionOverrides
from weft.parts.attention import CrossAttention, PlainCrossAttention, SelfAttention
from weft.parts.attention_context import AttentionContext
from weft.parts.block import Block
from weft.parts.embeddings import PatchEmbedding, SequenceInput, TokenEmbedding, VectorEmbedding
from weft.parts.grid_positions import GridAxes, GridSinusoids, GridTable
from weft.parts.observer import Observer
from weft.parts.positions import LearnedPositions, SinusoidalPositions
from weft.parts.relative import AttentionPosition
from weft.parts.stack import Stack
from weft.parts.word_embedding import WordEmbedding

EMBEDDINGS = (TokenEmbedding, VectorEmbedding, PatchEmbedding, WordEmbedding, nn.Embedding)
INPUT_POSITIONS = (LearnedPositions, SinusoidalPositions, GridTable, GridAxes, GridSinusoids)
Intervention = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Head:
    """One head's output Y_h [B, T, V], before heads are merged."""

    layer: int
    head: int
    kind: Kind = "self"


@dataclass(frozen=True)
class Attention:
    """What a layer's whole mixer (attention or any other) adds, [B, T, D]."""

    layer: int
    kind: Kind = "self"


@dataclass(frozen=True)
class FeedForward:
    """What a layer's feed-forward (MLP, experts) adds, [B, T, D]; kind "encoder" for an encoder-decoder's encoder."""

    layer: int
    kind: Kind = "self"


@dataclass(frozen=True)
class Tokens:
    """The embeddings of the tokens at these n places, [B, n, D]."""

    places: tuple[int, ...]
    side: TextSide = "target"


@dataclass(frozen=True)
class Positions:
    """What positions add: vectors at the first layer, rotations and biases in attention; can only be switched off."""


InterventionPoint = Head | Attention | FeedForward | Tokens | Positions


def intervene(
    module: nn.Module, point: InterventionPoint, overrides: FunctionOverrides, change: Intervention
) -> Observer | None:
    """The observer that lets `change` act on this point's values; None where overrides do so, for foreign parts."""
    if isinstance(point, Head):
        return _at_head(module, point, overrides, change)
    if isinstance(point, Tokens):
        return _at_tokens(module, point, overrides, change)
    if isinstance(point, Positions):
        return _WithoutPositions(module)
    return _BranchChange(_branch(module, point), change)


class _BranchChange(Observer):
    def __init__(self, part: nn.Module, change: Intervention) -> None:
        self.part, self.change = part, change

    def on_branch(self, part: nn.Module, output: Tensor) -> Tensor:
        return self.change(output) if part is self.part else output


def _branch(module: nn.Module, point: Attention | FeedForward) -> nn.Module:
    stacks = [part for part in module.modules() if isinstance(part, Stack)]
    crossed = any(block.cross is not None for stack in stacks for block in stack.blocks)
    found: list[Any] = []
    for stack in stacks:
        encoder = crossed and all(block.cross is None for block in stack.blocks)
        if encoder == (point.kind == "encoder"):
            found += list(stack.blocks)
    if not stacks:
        raise WeftError(f"{point} cannot be reached: this model has no stack of Weft's blocks")
    if not 0 <= point.layer < len(found):
        raise WeftError(f"there is no layer {point.layer}: choose 0 to {len(found) - 1}")
    block = found[point.layer]
    if not isinstance(block, Block):
        raise WeftError(f"layer {point.layer} is a {type(block).__name__}: only Weft's own blocks can be reached")
    name = "feedforward" if isinstance(point, FeedForward) else "cross" if point.kind == "cross" else "mixer"
    part = getattr(block, name)
    if not isinstance(part, nn.Module):
        raise WeftError(f"layer {point.layer} has no {name}: choose another point")
    return part


class _HeadChange(Observer):
    def __init__(self, part: nn.Module, head: int, change: Intervention) -> None:
        self.part, self.head, self.change = part, head, change

    def on_attention(
        self, part: nn.Module, query: Tensor, key: Tensor, value: Tensor, context: AttentionContext, output: Tensor
    ) -> Tensor:
        return _with_head(output, self.head, self.change) if part is self.part else output


def _at_head(module: nn.Module, point: Head, overrides: FunctionOverrides, change: Intervention) -> Observer | None:
    names = AttentionNames(module)
    own = [part for part in module.modules() if names.own.get(id(part), (None, -1))[:2] == (point.kind, point.layer)]
    if not own:
        if names.own or not names.foreign:
            layers = sorted({layer for kind, layer, _ in names.own.values() if kind == point.kind})
            raise WeftError(f"there is no layer {point.layer} of {point.kind} attention: choose one of {layers}")
        _override_foreign_head(point, names, overrides, change)
        return None
    part = own[0]
    if not isinstance(part, (SelfAttention, CrossAttention, PlainCrossAttention)):
        raise WeftError(
            f"layer {point.layer} is a {type(part).__name__} without heads to change: use Attention instead"
        )
    if not 0 <= point.head < part.heads:
        raise WeftError(f"there is no head {point.head} in a layer of {part.heads}: choose 0 to {part.heads - 1}")
    return _HeadChange(part, point.head, change)


def _with_head(y: Tensor, head: int, change: Intervention) -> Tensor:
    """[B, H, T, V] with one head's output changed."""
    if not head < y.shape[1]:
        raise WeftError(f"there is no head {head} in a layer of {y.shape[1]}: choose 0 to {y.shape[1] - 1}")
    out = y.clone()
    out[:, head] = change(y[:, head])
    return out


def _override_foreign_head(
    point: Head, names: AttentionNames, overrides: FunctionOverrides, change: Intervention
) -> None:
    """The layers of another library's model are counted as they run: those of one kind that call the fused kernel."""
    of_kind = [path for path, part in names.foreign.items() if names.kind_of(path, part) == point.kind]
    leaves = [path for path in of_kind if not any(other.startswith(path + ".") for other in of_kind)]
    if not 0 <= point.layer < len(leaves):
        raise WeftError(f"there is no layer {point.layer} of {point.kind} attention: choose 0 to {len(leaves) - 1}")
    inside: list[nn.Module] = []

    def part_wrapper(run: Any, part: nn.Module, *args: Any, **kwargs: Any) -> Any:
        inside.append(part)
        try:
            return run(part, *args, **kwargs)
        finally:
            inside.pop()

    def kernel_wrapper(run: Any, *args: Any, **kwargs: Any) -> Any:
        out = run(*args, **kwargs)
        return _with_head(out, point.head, change) if inside else out

    overrides.on(names.foreign[leaves[point.layer]], "forward", part_wrapper)
    overrides.everywhere(F, KERNEL, kernel_wrapper)


class _TokensChange(Observer):
    def __init__(self, part: nn.Module, point: Tokens, change: Intervention, shared: bool) -> None:
        self.part, self.point, self.change, self.shared = part, point, change, shared
        self.runs = 0

    def on_embedding(self, part: nn.Module, given: Tensor, output: Tensor) -> Tensor:
        return self.changed(output) if part is self.part else output

    def foreign(self, run: Any, part: nn.Module, *args: Any, **kwargs: Any) -> Tensor:
        return self.changed(run(part, *args, **kwargs))

    def changed(self, x: Tensor) -> Tensor:
        self.runs += 1
        # One embedding for both sides reads the source first, then the target, in turn.
        if self.shared and (self.runs % 2 == 1) != (self.point.side == "source"):
            return x
        places = list(self.point.places)
        if max(places) >= x.shape[1]:
            last = x.shape[1] - 1
            raise WeftError(f"there is no token {max(places)} in a text of {last + 1}: choose 0 to {last}")
        x = x.clone()
        x[:, places] = self.change(x[:, places])
        return x


def _at_tokens(module: nn.Module, point: Tokens, overrides: FunctionOverrides, change: Intervention) -> Observer | None:
    """The embedding of the side asked for: of models with a source, the first embedding reads it."""
    parts = [(path, part) for path, part in module.named_modules() if isinstance(part, EMBEDDINGS)]
    parts = [(path, part) for path, part in parts if not any(word in path for word in ("position", "wpe", "type"))]
    if not parts:
        raise WeftError("this model has no embedding whose tokens could be changed")
    declares = getattr(module, "declares", None)
    shared = len(parts) == 1 and declares is not None and declares().seq2seq
    part = parts[0][1] if point.side == "source" or len(parts) == 1 else parts[-1][1]
    observer = _TokensChange(part, point, change, shared)
    if isinstance(part, nn.Embedding):
        overrides.on(part, "forward", observer.foreign)
        return None
    return observer


class _WithoutPositions(Observer):
    """Positions of a module add nothing; where they are concatenated, zeros stand in their place."""

    def __init__(self, module: nn.Module) -> None:
        parts = list(module.modules())
        inputs = [part.position for part in parts if isinstance(part, SequenceInput)]
        self.found = {id(part) for part in parts if isinstance(part, (AttentionPosition, *INPUT_POSITIONS))}
        self.found |= {id(part) for part in inputs if part is not None}
        if not self.found:
            raise WeftError("this model has no positions that could be switched off")

    def on_input_positions(self, part: nn.Module, x: Tensor, output: Tensor) -> Tensor:
        if id(part) not in self.found:
            return output
        if getattr(part, "join", "add") == "add":
            return x
        out = output.clone()
        out[..., x.shape[-1] :] = 0
        return out

    def on_attention_position(self, position: AttentionPosition) -> AttentionPosition | None:
        return None if id(position) in self.found else position
