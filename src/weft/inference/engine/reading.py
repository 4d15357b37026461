"""Reading prompts: in pieces that end where the text alone says, so that each is computed alike whatever else goes on.

Attention to a piece is one call, whose shape decides the bits of its result; so pieces end on a grid that is anchored
at the text's own first token, never where the room in a step, other prompts or the prefix cache would have it. Pieces
of many prompts are read in one pass where the model has a native step whose products of matrices treat rows alike
(native ones do, those of BLAS are tried by `probe`); else one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from weft.inference.decoding.conditioning import ConditionedModel, MemoryConditioned, Unconditioned
from weft.inference.engine.handles import GenerationHandle
from weft.inference.engine.probe import rows_are_alike
from weft.inference.engine.requests import EngineRequest
from weft.inference.fast.native import PackedReader, Piece, packed_reader
from weft.models.output import Memory
from weft.parts import observer
from weft.parts.state import State

PIECE = 32  # tokens: more save calls of attention, fewer share more in the prefix cache


class ReadingGrid(NamedTuple):
    """Where pieces end: at multiples of `size` tokens; the first `least`, which see each other, are in one piece."""

    size: int
    least: int = 1

    def next_end(self, at: int, length: int) -> int:
        """The end of the piece that begins at token `at` of a prompt."""
        return min(length, max(at + self.size, -(-self.least // self.size) * self.size))

    def last_end(self, length: int) -> int:
        """The last place up to `length` where a piece of any prompt of so many tokens ends; 0 if there is none."""
        found = length // self.size * self.size
        return found if found >= self.least else 0


@dataclass(eq=False)
class ReadingPrompt:
    """A prompt that is being read, in its slot; `at`: number of tokens read."""

    handle: GenerationHandle
    slot: int
    conditioned: ConditionedModel
    state: State
    at: int = 0

    @property
    def request(self) -> EngineRequest:
        """That of the handle."""
        return self.handle.request

    @property
    def memory(self) -> Memory | None:
        """That of its source, if there is one."""
        return self.conditioned.memory if isinstance(self.conditioned, MemoryConditioned) else None

    @property
    def wraps(self) -> bool:
        """Whether newer keys overwrite older ones."""
        return any(slots.window is not None for slots in self.state.cache_slots.values())


class PromptPiece(NamedTuple):
    """Tokens `first` to `last` - 1 of a prompt."""

    prompt: ReadingPrompt
    first: int
    last: int

    @property
    def tokens(self) -> Sequence[int]:
        return self.prompt.request.prompt[self.first : self.last]


class PieceRead(NamedTuple):
    """What a call made of a piece: hidden states [T, D], the head that gives their logits, alignments [T, S] if any."""

    hidden: Tensor
    head: Callable[[Tensor], Tensor]
    alignment: Tensor | None = None


class PieceReader:
    """Reads pieces by a model that is optimized."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.packed: PackedReader | None = packed_reader(model)
        if self.packed is not None and not rows_are_alike(self.packed.linear_shapes()):
            self.packed = None

    def takes(self, piece: PromptPiece) -> bool:
        """Whether this piece is read together with others."""
        conditioned = piece.prompt.conditioned
        alike = isinstance(conditioned, Unconditioned) and conditioned.model is self.model
        return self.packed is not None and alike and not observer.active

    def read(self, pieces: Sequence[PromptPiece]) -> list[PieceRead]:
        """One pass for pieces that it `takes`, of one prompt in their order."""
        assert self.packed is not None
        hidden = self.packed([Piece(piece.tokens, piece.prompt.state) for piece in pieces])
        return [PieceRead(one, self.head) for one in hidden]

    def head(self, hidden: Tensor) -> Tensor:
        """[R, D] -> [R, C]."""
        logits: Tensor = self.model.head(hidden, embedding=self.model.embedding)
        return logits


def read_alone(piece: PromptPiece) -> PieceRead:
    """One piece by the model's own call."""
    tokens = torch.tensor([list(piece.tokens)], device=piece.prompt.state.counter.device)
    out = piece.prompt.conditioned.call(tokens, None, piece.prompt.state, piece.first == 0)
    alignment = out.auxiliary.get("alignment")
    return PieceRead(out.hidden[0], out.head, None if alignment is None else alignment[0])


__all__ = ["PIECE", "PieceRead", "PieceReader", "PromptPiece", "ReadingGrid", "ReadingPrompt", "read_alone"]
