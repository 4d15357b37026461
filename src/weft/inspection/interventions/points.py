"""Sites: the places in a model where an intervention can act, and how each is reached."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from weft.foundation.errors import WeftError
from weft.inspection.recording.attention_names import Names
from weft.inspection.recording.attention_records import Kind
from weft.inspection.recording.calls import Side
from weft.inspection.recording.foreign_attention import KERNEL
from weft.inspection.recording.function_overrides import Taps
from weft.parts.attention import CrossAttention, SelfAttention
from weft.parts.embeddings import PatchEmbedding, TokenEmbedding, VectorEmbedding
from weft.parts.grid_positions import GridAxes, GridSinusoids, GridTable
from weft.parts.positions import LearnedPositions, SinusoidalPositions
from weft.parts.relative import AttentionPosition
from weft.parts.stack import Stack
from weft.parts.word_embedding import WordEmbedding

EMBEDDINGS = (TokenEmbedding, VectorEmbedding, PatchEmbedding, WordEmbedding, nn.Embedding)
INPUT_POSITIONS = (LearnedPositions, SinusoidalPositions, GridTable, GridAxes, GridSinusoids)
Change = Callable[[Tensor], Tensor]


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
    side: Side = "target"


@dataclass(frozen=True)
class Positions:
    """What positions add: vectors at the first layer, turns and biases inside attention; only to be switched off."""


Site = Head | Attention | FeedForward | Tokens | Positions


def reach_site(module: nn.Module, site: Site, taps: Taps, change: Change) -> None:
    """Let `change` act on what this site says."""
    if isinstance(site, Head):
        _reach_head(module, site, taps, change)
    elif isinstance(site, Tokens):
        _reach_tokens(module, site, taps, change)
    elif isinstance(site, Positions):
        _switch_off_positions(module, taps)
    else:
        taps.on(_branch(module, site), "forward", _on_output(change))


def _on_output(change: Change) -> Any:
    def advice(run: Any, part: nn.Module, *args: Any, **kwargs: Any) -> Any:
        out = run(part, *args, **kwargs)
        return (change(out[0]), *out[1:]) if isinstance(out, tuple) else change(out)

    return advice


def _branch(module: nn.Module, site: Attention | FeedForward) -> nn.Module:
    stacks = [part for part in module.modules() if isinstance(part, Stack)]
    crossed = any(block.cross is not None for stack in stacks for block in stack.blocks)
    found: list[Any] = []
    for stack in stacks:
        encoder = crossed and all(block.cross is None for block in stack.blocks)
        if encoder == (site.kind == "encoder"):
            found += list(stack.blocks)
    if not stacks:
        raise WeftError(f"{site} cannot be reached: this model has no stack of our own blocks")
    if not 0 <= site.layer < len(found):
        raise WeftError(f"there is no layer {site.layer}: choose 0 to {len(found) - 1}")
    block = found[site.layer]
    name = "feedforward" if isinstance(site, FeedForward) else "cross" if site.kind == "cross" else "mixer"
    part = getattr(block, name)
    if not isinstance(part, nn.Module):
        raise WeftError(f"layer {site.layer} has no {name}: choose another site")
    return part


def _reach_head(module: nn.Module, site: Head, taps: Taps, change: Change) -> None:
    names = Names(module)
    own = [part for part in module.modules() if names.own.get(id(part), (None, -1))[:2] == (site.kind, site.layer)]
    if not own:
        if names.own or not names.foreign:
            layers = sorted({layer for kind, layer, _ in names.own.values() if kind == site.kind})
            raise WeftError(f"there is no layer {site.layer} of {site.kind} attention: choose one of {layers}")
        _reach_foreign_head(site, names, taps, change)
        return
    part = own[0]
    assert isinstance(part, (SelfAttention, CrossAttention))
    if not 0 <= site.head < part.heads:
        raise WeftError(f"there is no head {site.head} in a layer of {part.heads}: choose 0 to {part.heads - 1}")

    def advice(run: Any, part: nn.Module, *args: Any, **kwargs: Any) -> Tensor:
        return _with_head(run(part, *args, **kwargs), site.head, change)

    taps.on(part, "gather", advice)


def _with_head(y: Tensor, head: int, change: Change) -> Tensor:
    """[B, H, T, V] with one head's output changed."""
    if not head < y.shape[1]:
        raise WeftError(f"there is no head {head} in a layer of {y.shape[1]}: choose 0 to {y.shape[1] - 1}")
    out = y.clone()
    out[:, head] = change(y[:, head])
    return out


def _reach_foreign_head(site: Head, names: Names, taps: Taps, change: Change) -> None:
    """The layers of another library's model are counted as they run: those of one kind that call the fused kernel."""
    of_kind = [path for path, part in names.foreign.items() if names.kind_of(path, part) == site.kind]
    leaves = [path for path in of_kind if not any(other.startswith(path + ".") for other in of_kind)]
    if not 0 <= site.layer < len(leaves):
        raise WeftError(f"there is no layer {site.layer} of {site.kind} attention: choose 0 to {len(leaves) - 1}")
    inside: list[nn.Module] = []

    def part_advice(run: Any, part: nn.Module, *args: Any, **kwargs: Any) -> Any:
        inside.append(part)
        try:
            return run(part, *args, **kwargs)
        finally:
            inside.pop()

    def kernel_advice(run: Any, *args: Any, **kwargs: Any) -> Any:
        out = run(*args, **kwargs)
        return _with_head(out, site.head, change) if inside else out

    taps.on(names.foreign[leaves[site.layer]], "forward", part_advice)
    taps.everywhere(F, KERNEL, kernel_advice)


def _reach_tokens(module: nn.Module, site: Tokens, taps: Taps, change: Change) -> None:
    """The embedding of the side asked for: of models with a source, the first embedding reads it."""
    parts = [(path, part) for path, part in module.named_modules() if isinstance(part, EMBEDDINGS)]
    parts = [(path, part) for path, part in parts if not any(word in path for word in ("position", "wpe", "type"))]
    if not parts:
        raise WeftError("this model has no embedding whose tokens could be changed")
    declares = getattr(module, "declares", None)
    shared = len(parts) == 1 and declares is not None and declares().seq2seq
    part = parts[0][1] if site.side == "source" or len(parts) == 1 else parts[-1][1]
    turn = [0]

    def advice(run: Any, part: nn.Module, *args: Any, **kwargs: Any) -> Any:
        out = run(part, *args, **kwargs)
        turn[0] += 1
        # One embedding for both sides reads the source first, then the target, in turn.
        if shared and (turn[0] % 2 == 1) != (site.side == "source"):
            return out
        x = out[0] if isinstance(out, tuple) else out
        if max(site.places) >= x.shape[1]:
            last = x.shape[1] - 1
            raise WeftError(f"there is no token {max(site.places)} in a text of {last + 1}: choose 0 to {last}")
        x = x.clone()
        x[:, list(site.places)] = change(x[:, list(site.places)])
        return (x, *out[1:]) if isinstance(out, tuple) else x

    taps.on(part, "forward", advice)


def _switch_off_positions(module: nn.Module, taps: Taps) -> None:
    found = False
    for part in module.modules():
        if isinstance(part, INPUT_POSITIONS):
            taps.on(part, "forward", _without_position)
            found = True
        elif isinstance(part, AttentionPosition):
            for name in ("angles", "angles_of", "bias"):
                if hasattr(part, name):
                    taps.on(part, name, lambda run, part, *args, **kwargs: None)
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
