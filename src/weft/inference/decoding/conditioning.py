"""Conditioning: how a model of each family is called for its next tokens, and what its text is conditioned on.

Decoders are called with tokens; image-text decoders also with images, at the first call; encoder-decoders, recurrent
ones included, with the memory of their source: tokens, vectors or images.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from weft.data.batching import PaddingSide
from weft.foundation.errors import WeftError
from weft.inference.fast.optimized import optimized
from weft.models.output import Declaration, Memory, Output
from weft.parts.masks import Real
from weft.parts.state import State

# Per prompt tokens, or vectors [steps, C]; images [B, channels, height, width]; or what was encoded before.
SourceInput = Sequence[Sequence[int]] | Sequence[Tensor] | Tensor | Memory


class ConditionedModel(Protocol):
    """A model with what its texts are conditioned on; one call for every family."""

    model: Any

    def call(self, tokens: Tensor, real: Tensor | None, state: State | None, first: bool) -> Output:
        """Tokens [B, T], True where real [B, T] (None: all); `first` where a text begins."""
        ...

    def reorder(self, rows: Tensor) -> None:
        """Keep the conditions of texts rows[0], rows[1], ... in this order."""
        ...


class Unconditioned:
    """A decoder: text and nothing else."""

    def __init__(self, model: Any) -> None:
        self.model = model

    def call(self, tokens: Tensor, real: Tensor | None, state: State | None, first: bool) -> Output:
        return self.model(tokens, mask=_marks(real), state=state)

    def reorder(self, rows: Tensor) -> None:
        pass


class ImageConditioned:
    """An image-text decoder; `images` [B, channels, height, width] stand before each text."""

    def __init__(self, model: Any, images: Tensor) -> None:
        self.model, self.images = model, images

    def call(self, tokens: Tensor, real: Tensor | None, state: State | None, first: bool) -> Output:
        images = self.images if first else None
        return self.model(tokens, mask=_marks(real), state=state, images=images)

    def reorder(self, rows: Tensor) -> None:
        self.images = self.images.index_select(0, rows)


class MemoryConditioned:
    """An encoder-decoder and what it encoded."""

    def __init__(self, model: Any, memory: Memory) -> None:
        self.model, self.memory = model, memory

    def call(self, tokens: Tensor, real: Tensor | None, state: State | None, first: bool) -> Output:
        return self.model.decode(tokens, self.memory, mask=_marks(real), state=state)

    def reorder(self, rows: Tensor) -> None:
        self.memory = self.memory.reorder(rows)


def _marks(real: Tensor | None) -> Real | None:
    return None if real is None else Real(real)


def declared(model: nn.Module) -> Declaration:
    """What a model declares, refused if it generates no text: it must go on from a state and have a vocabulary.

    The state may be no cache: that of a user's own module is the text so far.
    """
    declares = getattr(model, "declares", None)
    if declares is None:
        raise WeftError(f"a {type(model).__name__} declares nothing: build a model with weft.build to generate text")
    declaration: Declaration = declares()
    if not (declaration.causal and hasattr(model, "make_state")) or declaration.vocabulary is None:
        raise WeftError(
            f"a model of family {declaration.family!r} generates no text: use a decoder or an encoder-decoder"
        )
    return declaration


def device_of(model: nn.Module) -> torch.device:
    """The device of the weights."""
    return next(model.parameters()).device


@torch.inference_mode()
def condition(
    model: nn.Module,
    rows: int,
    source: SourceInput | None = None,
    images: Tensor | None = None,
    side: PaddingSide = "right",
    native: bool = True,
) -> ConditionedModel:
    """The model, optimized, with what its texts are conditioned on; sources are encoded here, padded on `side`.

    `native=False`: the model's own parts run one by one, see `weft.inference.fast.optimized`.
    """
    declaration = declared(model)
    model = optimized(model, native)
    if source is not None and not declaration.seq2seq:
        raise WeftError(f"a model of family {declaration.family!r} reads no source: leave `source` out")
    if images is not None and declaration.prefix is None:
        remedy = "give images as `source`" if declaration.seq2seq else "leave `images` out"
        raise WeftError(f"a model of family {declaration.family!r} sees no images beside its text: {remedy}")
    if declaration.seq2seq:
        if source is None:
            raise WeftError(f"a model of family {declaration.family!r} generates from a source: give `source`")
        memory = source if isinstance(source, Memory) else encode(model, source, side)
        expect_rows(rows, memory, None)
        return MemoryConditioned(model, memory)
    if images is None:
        return Unconditioned(model)
    expect_rows(rows, None, images)
    return ImageConditioned(model, images.to(device_of(model)))


def encode(model: Any, source: SourceInput, side: PaddingSide = "right") -> Memory:
    """The memory of sources of any lengths; only tokens may be padded on the left."""
    kind = getattr(model.spec, "source", None)
    if kind is None or kind.kind == "tokens":
        tokens, real = pad(_token_rows(source), device_of(model), side, "source")
        return model.encode(tokens, mask=_marks(real))
    values, real = kind.collate(source)
    return model.encode(values.to(device_of(model)), mask=_marks(real if real is None else real.to(device_of(model))))


def _token_rows(source: Any) -> list[list[int]]:
    rows = [row.tolist() if isinstance(row, Tensor) else list(row) for row in source]
    if any(not isinstance(token, int) for row in rows for token in row[:1]):
        raise WeftError("this model's source is tokens, but it was given vectors or images: give rows of whole numbers")
    return rows


def expect_rows(prompts: int, source: SourceInput | None, images: Tensor | None) -> None:
    """Refuse another number of sources or images than of prompts."""
    sources = source.hidden.shape[0] if isinstance(source, Memory) else None if source is None else len(source)
    for given, what in ((sources, "sources"), (None if images is None else images.shape[0], "images")):
        if given is not None and given != prompts:
            raise WeftError(f"{given} {what} for {prompts} prompts: give one per prompt")


def pad(
    rows: Sequence[Sequence[int]], device: torch.device, side: PaddingSide, name: str = "prompt"
) -> tuple[Tensor, Tensor | None]:
    """Rows of any lengths as tokens [B, T] and a boolean [B, T], True where real; None where all are."""
    if not rows:
        raise WeftError(f"no {name}s: give at least one")
    lengths = [len(row) for row in rows]
    if min(lengths) == 0:
        raise WeftError(f"{name} {lengths.index(0)} is empty: give at least one token, for example the start token")
    T = max(lengths)
    if min(lengths) == T:
        return torch.tensor([list(row) for row in rows], device=device), None
    fill = [[0] * (T - n) for n in lengths]
    filled = [[*row, *f] if side == "right" else [*f, *row] for row, f in zip(rows, fill, strict=True)]
    index = torch.arange(T)
    length = torch.tensor(lengths)[:, None]
    real = index < length if side == "right" else index >= T - length
    return torch.tensor(filled, device=device), real.to(device)


@contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """All parts in evaluation mode; afterwards each is put back into the mode that it had."""
    training = [part for part in model.modules() if part.training]
    for part in training:
        part.training = False
    try:
        yield
    finally:
        for part in training:
            part.training = True
