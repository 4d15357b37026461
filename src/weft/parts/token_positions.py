"""Token positions: where each token of a sequence stands (its position, its document), and what is known in advance.

A token that is only padding has a negative position; so has an empty slot of a state. Everything else (masks, rotary
angles, cached decoding, ragged batches, packing) is a function of these numbers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from weft.foundation.errors import ShapeError
from weft.foundation.lazy import lazy

Pads = Literal["none", "right", "anywhere"]
SHARED = 2**62  # the document of tokens that all documents of their row see, such as the image before its captions


@dataclass(frozen=True, eq=False)
class TokenPositions:
    """Positions [B or 1, N] and documents [B or 1, N] of N tokens.

    `start`: token i of every row stands at position start + i (padding aside), known without looking at a tensor, so
    that the cheapest kernel can be chosen without waiting for the device. `pads` says where padding may stand.
    `ids` are the documents' names as the user gave them; `documents` may be running numbers instead.
    `packed`: documents are contiguous and count from 0 each, so that positions differ as indices do within one.
    """

    length: int
    device: torch.device
    start: int | None = None
    pads: Pads = "none"
    packed: bool = False
    given: Tensor | None = None
    documents: Tensor | None = None
    ids: Tensor | None = None
    grid: tuple[int, int] | None = None

    @staticmethod
    def run(start: int, length: int, device: torch.device, grid: tuple[int, int] | None = None) -> TokenPositions:
        """start, start + 1, ... in every row, no padding: the plain case."""
        return TokenPositions(length, device, start=start, grid=grid)

    @staticmethod
    def of(positions: Tensor, documents: Tensor | None = None) -> TokenPositions:
        """Positions as given, [T] or [B, T]; negative ones are padding."""
        if positions.dim() == 1:
            positions = positions[None]
        if positions.dim() != 2:
            raise ShapeError(f"positions have shape {tuple(positions.shape)}, but [T] or [B, T] is expected")
        return TokenPositions(
            positions.shape[1], positions.device, None, "anywhere", False, positions.long(), documents
        )

    @staticmethod
    def of_real(real: Tensor) -> TokenPositions:
        """From a boolean [B, T], True where a token is real: real tokens count from 0, padding gets -1."""
        positions = (real.long().cumsum(1) - 1).masked_fill(~real, -1)
        right = real.device.type == "cpu" and bool((real[:, :-1] >= real[:, 1:]).all())
        start: int | None = 0 if right else None
        return TokenPositions(real.shape[1], real.device, start, "right" if right else "anywhere", False, positions)

    @staticmethod
    def of_lengths(lengths: Tensor, length: int, side: Literal["left", "right"] = "right") -> TokenPositions:
        """`lengths` [B] real tokens in rows of `length`, padding on one side."""
        index = torch.arange(length, device=lengths.device)[None]
        if side == "right":
            positions = index.masked_fill(index >= lengths[:, None], -1)
            return TokenPositions(length, lengths.device, 0, "right", False, positions)
        positions = (index - (length - lengths[:, None])).clamp(min=-1)
        return TokenPositions(length, lengths.device, None, "anywhere", False, positions)

    @staticmethod
    def of_documents(documents: Tensor) -> TokenPositions:
        """Packed rows: `documents` [B, T] names each token's document, negative for padding; each counts from 0."""
        begins = document_begins(documents)
        in_order = documents.sort(1).values
        stretches = (begins & (documents >= 0)).sum(1)
        distinct = (document_begins(in_order) & (in_order >= 0)).sum(1)
        if documents.device.type == "cpu" and bool((stretches != distinct).any()):
            raise ShapeError("a document's tokens must stand together: give each stretch of a row its own document id")
        index = torch.arange(documents.shape[1], device=documents.device).expand_as(documents)
        first = index.masked_fill(~begins, 0).cummax(1).values
        positions = (index - first).masked_fill(documents < 0, -1)
        return TokenPositions(documents.shape[1], documents.device, None, "anywhere", True, positions, documents)

    @lazy
    def positions(self) -> Tensor:
        """[B or 1, N], built only when a tensor is needed."""
        if self.given is not None:
            return self.given
        assert self.start is not None
        return torch.arange(self.start, self.start + self.length, device=self.device)[None]

    @lazy
    def real(self) -> Tensor | None:
        """[B or 1, N], True where a token is real; None where all are."""
        return None if self.pads == "none" else self.positions >= 0

    @property
    def plain(self) -> bool:
        """No padding, no documents, and positions known without a tensor."""
        return self.start is not None and self.pads == "none" and self.documents is None

    def after(self, extra: int) -> TokenPositions:
        """With `extra` tokens (a class token, an image) put before each row: they take the first positions."""
        if self.documents is not None:
            raise ShapeError("packed documents cannot have tokens put before each row: pack them with theirs")
        given = self.given
        if given is not None:
            first = torch.where(given >= 0, given, torch.iinfo(torch.long).max).amin(1, keepdim=True)
            first = torch.where((given >= 0).any(1, keepdim=True), first, 0)
            ahead = first + torch.arange(extra, device=self.device)
            given = torch.cat((ahead, torch.where(given >= 0, given + extra, -1)), 1)
        return replace(self, length=self.length + extra, given=given, grid=None)

    def reorder(self, rows: Tensor) -> TokenPositions:
        """Rows rows[0], rows[1], ... in this order."""
        given, documents = (
            t if t is None or t.shape[0] == 1 else t.index_select(0, rows) for t in (self.given, self.documents)
        )
        return replace(self, given=given, documents=documents)

    def slice(self, first: int, last: int) -> TokenPositions:
        """Tokens first .. last - 1."""
        return replace(
            self,
            length=last - first,
            start=None if self.start is None else self.start + first,
            given=None if self.given is None else self.given[:, first:last],
            documents=None if self.documents is None else self.documents[:, first:last],
            grid=None,
        )


def distances(queries: TokenPositions, keys: TokenPositions) -> Tensor:
    """i - j, [B or 1, T, S]."""
    return queries.positions[:, :, None] - keys.positions[:, None, :]


def same_document(queries: Tensor, keys: Tensor) -> Tensor:
    """Which keys are of the query's document, or of all: [B, T], [B, S] -> [B, T, S]."""
    return (queries[:, :, None] == keys[:, None, :]) | (keys == SHARED)[:, None, :]


def document_begins(documents: Tensor) -> Tensor:
    """[B, N], True where a token begins a new stretch of equal ids."""
    begins = torch.ones_like(documents, dtype=torch.bool)
    begins[:, 1:] = documents[:, 1:] != documents[:, :-1]
    return begins


def real_counts(token_positions: TokenPositions, batch: int) -> Tensor:
    """How many real tokens each row has, [B]."""
    if token_positions.real is None:
        return torch.full((batch,), token_positions.length, device=token_positions.device)
    return token_positions.real.sum(1).expand(batch)


def first_real(token_positions: TokenPositions) -> Tensor:
    """The index of each row's first real token, [B or 1]."""
    return (
        token_positions.real.long().argmax(1)
        if token_positions.real is not None
        else token_positions.positions.new_zeros(1)
    )


def last_real(token_positions: TokenPositions) -> Tensor:
    """The index of each row's last real token, [B or 1]."""
    if token_positions.real is None:
        return token_positions.positions.new_full((1,), token_positions.length - 1)
    index = torch.arange(token_positions.length, device=token_positions.device)
    return torch.where(token_positions.real, index, 0).amax(1)
