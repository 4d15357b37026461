"""Segments: runs of real tokens of one document, gathered into rows of their own.

Recurrence and convolution step through a sequence in order, so padding and document borders must not be stepped over.
Each (row, document) becomes a row that starts at index 0; afterwards everything goes back to its place.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from weft.parts.token_positions import TokenPositions


@dataclass(frozen=True)
class Segments:
    """R segments out of B rows of T tokens: where token (b, t) goes, and how long each segment is."""

    segment: Tensor  # [n] of each real token
    step: Tensor  # [n] its index within the segment
    row: Tensor  # [n] its row in the batch
    column: Tensor  # [n] its column in the batch
    lengths: Tensor  # [R]
    rows: Tensor  # [R] the row that a segment lies in
    first: Tensor  # [R] whether it is its row's first
    last: Tensor  # [R] whether it is its row's last
    shape: tuple[int, int]

    @staticmethod
    def of(token_positions: TokenPositions, batch: int) -> Segments:
        """Split by padding and documents."""
        real = (token_positions.positions >= 0).expand(batch, -1)
        row, column = real.nonzero(as_tuple=True)
        begins = torch.ones_like(row, dtype=torch.bool)
        begins[1:] = row[1:] != row[:-1]
        if token_positions.documents is not None:
            documents = token_positions.documents.expand(batch, -1)[row, column]
            begins[1:] |= documents[1:] != documents[:-1]
        segment = begins.long().cumsum(0) - 1
        index = torch.arange(len(row), device=row.device)
        starts = index[begins]
        rows = row[begins]
        fresh = torch.ones_like(rows, dtype=torch.bool)
        fresh[1:] = rows[1:] != rows[:-1]
        final = torch.ones_like(fresh)
        final[:-1] = fresh[1:]
        lengths = torch.bincount(segment, minlength=len(rows))
        return Segments(
            segment, index - starts[segment], row, column, lengths, rows, fresh, final, (batch, real.shape[1])
        )

    def gather(self, x: Tensor) -> Tensor:
        """[B, T, D] -> [R, longest, D], zeros after each segment's end."""
        out = x.new_zeros(len(self.lengths), int(self.lengths.max()) if len(self.lengths) else 0, x.shape[-1])
        return out.index_put((self.segment, self.step), x[self.row, self.column])

    def pack(self, x: Tensor) -> tuple[PackedSequence, Tensor]:
        """[B, T, D] -> real tokens [n, D] as torch's recurrent nets want them, and their places in B x T."""
        by_length = self.lengths.argsort(descending=True, stable=True)
        rank = by_length.argsort()
        order = (self.step * len(rank) + rank[self.segment]).argsort()
        place = (self.row * self.shape[1] + self.column)[order]
        sizes = torch.bincount(self.step).cpu()
        return PackedSequence(x.flatten(0, 1).index_select(0, place), sizes, by_length, rank), place

    def scatter(self, y: Tensor) -> Tensor:
        """[R, longest, D] -> [B, T, D], zeros where nothing is real."""
        out = y.new_zeros(*self.shape, y.shape[-1])
        return out.index_put((self.row, self.column), y[self.segment, self.step])


def continues(token_positions: TokenPositions, segments: Segments, document: Tensor | None) -> Tensor:
    """[R]: whether a segment goes on from the state of its row: the first one, in the document that was last."""
    if document is None or token_positions.documents is None:
        return segments.first
    ids = token_positions.documents.expand(segments.shape[0], -1)
    starts = segments.step == 0
    own = ids[segments.row[starts], segments.column[starts]]
    return segments.first & (own == document[segments.rows])


def last_document(token_positions: TokenPositions, batch: int, before: Tensor | None) -> tuple[Tensor, ...]:
    """Each row's last document, where documents are known at all."""
    if token_positions.documents is None:
        return () if before is None else (before,)
    ids = token_positions.documents.expand(batch, -1)
    index = torch.where(
        token_positions.positions.expand(batch, -1) >= 0, torch.arange(token_positions.length, device=ids.device), -1
    )
    last = index.amax(1)
    found = ids.gather(1, last.clamp(min=0)[:, None])[:, 0]
    return (torch.where(last >= 0, found, torch.full_like(found, -1) if before is None else before),)
