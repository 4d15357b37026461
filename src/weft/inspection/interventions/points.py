"""Sites: the places in a model where an intervention can act, and how each is reached."""

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
from weft.parts.attention import CrossAttention, SelfAttention
from weft.parts.embeddings import PatchEmbedding, TokenEmbedding, VectorEmbedding
from weft.parts.grid_positions import GridAxes, GridSinusoids, GridTable
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
    """The embeddings of the tokens at these places, [B, n, D]."""

    places: tuple[int, ...]
    side: TextSide = "target"


@dataclass(frozen=True)
class Positions:
    """What positions add: vectors at the first layer, turns and biases inside attention; only to be switched off."""


InterventionPoint = Head | Attention | FeedForward | Tokens | Positions


def apply_at(module: nn.Module, point: InterventionPoint, overrides: FunctionOverrides, change: Intervention) -> None:
    """Let `change` act on what this point says."""
    if isinstance(point, Head):
        _reach_head(module, point, overrides, change)
    elif isinstance(point, Tokens):
        _reach_tokens(module, point, overrides, change)
    elif isinstance(point, Positions):
        _switch_off_positions(module, overrides)
    else:
        overrides.on(_branch(module, point), "forward", _on_output(change))


def _on_output(change: Intervention) -> Any:
    def wrapper(run: Any, part: nn.Module, *args: Any, **kwargs: Any) -> Any:
        out = run(part, *args, **kwargs)
        return (change(out[0]), *out[1:]) if isinstance(out, tuple) else change(out)

    return wrapper


def _branch(module: nn.Module, point: Attention | FeedForward) -> nn.Module:
    stacks = [part for part in module.modules() if isinstance(part, Stack)]
    crossed = any(block.cross is not None for stack in stacks for block in stack.blocks)
    found: list[Any] = []
    for stack in stacks:
        encoder = crossed and all(block.cross is None for block in stack.blocks)
        if encoder == (point.kind == "encoder"):
            found += list(stack.blocks)
    if not stacks:
        raise WeftError(f"{point} cannot be reached: this model has no stack of our own blocks")
    if not 0 <= point.layer < len(found):
        raise WeftError(f"there is no layer {point.layer}: choose 0 to {len(found) - 1}")
    block = found[point.layer]
    name = "feedforward" if isinstance(point, FeedForward) else "cross" if point.kind == "cross" else "mixer"
    part = getattr(block, name)
    if not isinstance(part, nn.Module):
        raise WeftError(f"layer {point.layer} has no {name}: choose another point")
    return part


def _reach_head(module: nn.Module, point: Head, overrides: FunctionOverrides, change: Intervention) -> None:
    names = AttentionNames(module)
    own = [part for part in module.modules() if names.own.get(id(part), (None, -1))[:2] == (point.kind, point.layer)]
    if not own:
        if names.own or not names.foreign:
            layers = sorted({layer for kind, layer, _ in names.own.values() if kind == point.kind})
            raise WeftError(f"there is no layer {point.layer} of {point.kind} attention: choose one of {layers}")
        _reach_foreign_head(point, names, overrides, change)
        return
    part = own[0]
    assert isinstance(part, (SelfAttention, CrossAttention))
    if not 0 <= point.head < part.heads:
        raise WeftError(f"there is no head {point.head} in a layer of {part.heads}: choose 0 to {part.heads - 1}")

    def wrapper(run: Any, part: nn.Module, *args: Any, **kwargs: Any) -> Tensor:
        return _with_head(run(part, *args, **kwargs), point.head, change)

    overrides.on(part, "gather", wrapper)


def _with_head(y: Tensor, head: int, change: Intervention) -> Tensor:
    """[B, H, T, V] with one head's output changed."""
    if not head < y.shape[1]:
        raise WeftError(f"there is no head {head} in a layer of {y.shape[1]}: choose 0 to {y.shape[1] - 1}")
    out = y.clone()
    out[:, head] = change(y[:, head])
    return out


def _reach_foreign_head(point: Head, names: AttentionNames, overrides: FunctionOverrides, change: Intervention) -> None:
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


def _reach_tokens(module: nn.Module, point: Tokens, overrides: FunctionOverrides, change: Intervention) -> None:
    """The embedding of the side asked for: of models with a source, the first embedding reads it."""
    parts = [(path, part) for path, part in module.named_modules() if isinstance(part, EMBEDDINGS)]
    parts = [(path, part) for path, part in parts if not any(word in path for word in ("position", "wpe", "type"))]
    if not parts:
        raise WeftError("this model has no embedding whose tokens could be changed")
    declares = getattr(module, "declares", None)
    shared = len(parts) == 1 and declares is not None and declares().seq2seq
    part = parts[0][1] if point.side == "source" or len(parts) == 1 else parts[-1][1]
    turn = [0]

    def wrapper(run: Any, part: nn.Module, *args: Any, **kwargs: Any) -> Any:
        out = run(part, *args, **kwargs)
        turn[0] += 1
        # One embedding for both sides reads the source first, then the target, in turn.
        if shared and (turn[0] % 2 == 1) != (point.side == "source"):
            return out
        x = out[0] if isinstance(out, tuple) else out
        if max(point.places) >= x.shape[1]:
            last = x.shape[1] - 1
            raise WeftError(f"there is no token {max(point.places)} in a text of {last + 1}: choose 0 to {last}")
        x = x.clone()
        x[:, list(point.places)] = change(x[:, list(point.places)])
        return (x, *out[1:]) if isinstance(out, tuple) else x

    overrides.on(part, "forward", wrapper)


def _switch_off_positions(module: nn.Module, overrides: FunctionOverrides) -> None:
    found = False
    for part in module.modules():
        if isinstance(part, INPUT_POSITIONS):
            overrides.on(part, "forward", _without_position)
            found = True
        elif isinstance(part, AttentionPosition):
            for name in ("angles", "angles_of", "bias"):
                if hasattr(part, name):
                    overrides.on(part, name, lambda run, part, *args, **kwargs: None)
            found = True
    if not found:
        raise WeftError("this model has no positions that could be switched off")


def _without_position(run: Any, part: nn.Module, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """x as it is; where positions are concatenated, zeros in their place."""
    if getattr(part, "join", "add") == "add":
        return x
    out = run(part, x, *args, **kwargs).clone()
    out[..., x.shape[-1] :] = 0
    return out
