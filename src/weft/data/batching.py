"""Batching: a random order of examples, batches of similar length, padding. Order depends on seed and epoch alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from weft.foundation.errors import WeftError
from weft.foundation.seeds import generator

PaddingSide = Literal["left", "right"]


def shuffled_order(count: int, seed: int, epoch: int) -> list[int]:
    """A permutation of 0 .. count - 1 that depends on seed and epoch alone."""
    drawn: list[int] = torch.randperm(count, generator=generator(seed, "order", epoch)).tolist()
    return drawn


def batches_by_length(
    lengths: Sequence[int], tokens: int, seed: int, epoch: int, most: int | None = None
) -> list[list[int]]:
    """Batches of examples of similar length, at most `tokens` tokens with padding (and `most` rows) each, shuffled.

    Examples are sorted by length, equal lengths in random order, cut into batches, and the batches shuffled.
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


@dataclass(frozen=True)
class PaddedRows:
    """Tokens [B, T] with padding, and the number of real tokens per row."""

    tokens: Tensor
    lengths: Tensor
    side: PaddingSide = "right"


def pad_rows(rows: Sequence[Sequence[int]], pad: int, side: PaddingSide = "right") -> PaddedRows:
    """Rows of different lengths as one padded tensor."""
    if not rows:
        raise WeftError("no rows to pad: a batch needs at least one example")
    width = max(len(row) for row in rows)
    tokens = torch.full((len(rows), width), pad)
    for number, row in enumerate(rows):
        place = slice(width - len(row), width) if side == "left" else slice(0, len(row))
        tokens[number, place] = torch.as_tensor(row, dtype=torch.long)
    return PaddedRows(tokens, torch.tensor([len(row) for row in rows]), side)


def places_in_documents(documents: NDArray[np.int64] | None, count: int) -> NDArray[np.int64]:
    """The position of each of `count` tokens in its row, or in its document where these do not see each other."""
    index = np.arange(count)
    documents = np.zeros(count, dtype=np.int64) if documents is None else documents
    begins = np.concatenate(([True], documents[1:] != documents[:-1]))
    return index - np.maximum.accumulate(np.where(begins, index, 0))
