"""Batching: by length, or packed into rows with document isolation. Order is a function of seed and epoch alone.

Batch number n of an epoch is the same list of examples whatever the number of processes: each process takes its share
of every batch, so one and two processes see the same global batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from weft.foundation.errors import WeftError
from weft.foundation.seeds import generator

PaddingSide = Literal["left", "right"]


def shuffled_order(count: int, seed: int, epoch: int) -> list[int]:
    """A permutation of 0 .. count - 1 that depends on seed and epoch alone."""
    drawn: list[int] = torch.randperm(count, generator=generator(seed, "order", epoch)).tolist()
    return drawn


def batches_of(count: int, size: int, seed: int, epoch: int) -> list[list[int]]:
    """Batches of `size` examples in random order; the last may be smaller."""
    order = shuffled_order(count, seed, epoch)
    return [order[first : first + size] for first in range(0, count, size)]


def batches_by_length(
    lengths: Sequence[int], tokens: int, seed: int, epoch: int, most: int | None = None
) -> list[list[int]]:
    """Batches of examples of like length, each of at most `tokens` tokens with padding (and `most` rows), shuffled.

    Examples are sorted by length with random order among equals, cut, and the batches then come in random order.
    """
    longest = max(lengths, default=0)
    if longest > tokens:
        raise WeftError(f"an example of {longest} tokens does not fit a batch of {tokens}: raise the batch or cut it")
    order = sorted(shuffled_order(len(lengths), seed, epoch), key=lambda index: lengths[index])
    batches: list[list[int]] = []
    current: list[int] = []
    for index in order:
        # Sorted, so the newest is the longest: it sets the width of the whole batch.
        full = current and (len(current) + 1) * lengths[index] > tokens
        if full or (most is not None and len(current) == most):
            batches.append(current)
            current = []
        current.append(index)
    if current:
        batches.append(current)
    mixed = torch.randperm(len(batches), generator=generator(seed, "batches", epoch)).tolist()
    return [batches[number] for number in mixed]


def share_of(batch: Sequence[int], process: int, processes: int) -> list[int]:
    """The part of a global batch that one process computes: shares differ by at most one example."""
    return list(batch[process::processes])


@dataclass(frozen=True)
class PaddedRows:
    """Tokens [B, T] with padding, and how many are real in each row."""

    tokens: Tensor
    lengths: Tensor
    side: PaddingSide = "right"


def pad_rows(rows: Sequence[Sequence[int]], pad: int, side: PaddingSide = "right") -> PaddedRows:
    """Rows of different lengths as one tensor."""
    if not rows:
        raise WeftError("no rows to pad: a batch needs at least one example")
    width = max(len(row) for row in rows)
    tokens = torch.full((len(rows), width), pad)
    for number, row in enumerate(rows):
        place = slice(width - len(row), width) if side == "left" else slice(0, len(row))
        tokens[number, place] = torch.as_tensor(row, dtype=torch.long)
    return PaddedRows(tokens, torch.tensor([len(row) for row in rows]), side)


@dataclass(frozen=True)
class Packed:
    """Tokens [B, T] of several documents a row, and each token's document id, -1 for padding."""

    tokens: Tensor
    documents: Tensor

    @property
    def filled(self) -> float:
        """The share of places that hold a token."""
        return float((self.documents >= 0).double().mean())


def pack_rows(documents: Sequence[Sequence[int]], width: int, pad: int) -> Packed:
    """Documents packed into rows of `width`, each whole: longest first, into the fullest row that still has room."""
    longest = max(map(len, documents), default=0)
    if longest > width:
        raise WeftError(f"a document of {longest} tokens does not fit a row of {width}: cut it or raise the length")
    rows: list[list[int]] = []
    room: list[int] = []
    for index in sorted(range(len(documents)), key=lambda i: (-len(documents[i]), i)):
        size = len(documents[index])
        if not size:
            continue
        fits = [number for number, left in enumerate(room) if left >= size]
        number = min(fits, key=lambda n: room[n]) if fits else len(rows)
        if number == len(rows):
            rows.append([])
            room.append(width)
        rows[number].append(index)
        room[number] -= size
    tokens = torch.full((len(rows), width), pad)
    ids = torch.full((len(rows), width), -1)
    for number, row in enumerate(rows):
        at = 0
        for index in row:
            end = at + len(documents[index])
            tokens[number, at:end] = torch.as_tensor(documents[index], dtype=torch.long)
            ids[number, at:end] = index
            at = end
    return Packed(tokens, ids)
