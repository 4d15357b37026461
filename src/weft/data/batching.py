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

READ_AT_ONCE = 8192  # tokens per batch in prediction

# What a call of a model costs beside its tokens, in tokens. Other devices start kernels one by one and have room for
# thousands of tokens at once, so padding costs them little.
CALL_ON_CPU, CALL_ELSEWHERE = 64, 8192


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


def groups_of_like_length(
    lengths: Sequence[int], tokens: int, device: torch.device, rows: int | None = None
) -> list[list[int]]:
    """Examples in groups that cost least to compute, short ones first: at most `tokens` with padding and `rows` each.

    A group of n examples, the longest of m tokens, costs n m tokens with its padding, and as much as some tokens more
    for each call that it takes, which is little on a CPU. Sorted by length, the best borders follow from the best ones
    of all shorter examples: cost(j) = min over i < j of cost(i) + cost of one group from i to j, over the different
    lengths i and j.
    """
    order = sorted(range(len(lengths)), key=lambda example: lengths[example])
    kinds, counts = np.unique(np.array(lengths, dtype=np.int64), return_counts=True)
    ends = np.concatenate(([0], counts.cumsum()))
    room = np.maximum(1, tokens // np.maximum(kinds, 1))  # how many rows of a length one call may have
    room = room if rows is None else np.minimum(room, rows)
    call = CALL_ON_CPU if device.type == "cpu" else CALL_ELSEWHERE
    least, border = np.zeros(len(ends)), np.zeros(len(ends), dtype=np.int64)
    for j, (longest, most) in enumerate(zip(kinds, room, strict=True), start=1):
        members = ends[j] - ends[:j]
        costs = least[:j] + members * longest + -(-members // most) * call
        border[j] = costs.argmin()
        least[j] = costs[border[j]]
    groups: list[list[int]] = []
    j = len(kinds)
    while j > 0:
        first, last, most = int(ends[border[j]]), int(ends[j]), int(room[j - 1])
        pieces = [order[k : min(k + most, last)] for k in range(first, last, most)]
        groups, j = pieces + groups, int(border[j])
    return groups


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
