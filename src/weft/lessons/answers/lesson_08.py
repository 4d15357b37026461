"""Lesson 8: heads."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from weft.lessons.checking import Question, expect_number
from weft.parts.attention import SelfAttention


def extra_weights() -> float:
    """Weights of 8 heads less those of 1 head, of the same width."""
    one, eight = (sum(w.numel() for w in SelfAttention(512, heads).parameters()) for heads in (1, 8))
    return float(eight - one)


def bytes_of_weights() -> float:
    """A tensor of that shape that takes no memory."""
    return float(torch.empty(64, 100_000, 100_000, dtype=torch.bfloat16, device="meta").nbytes)


def judge_bytes(answer: float) -> str:
    """Within 10 %: some count in powers of 2."""
    return expect_number(bytes_of_weights, "H matrices of N x N numbers, two bytes each.", 0.1)(answer)


def judge_split(answer: Callable[[Tensor, int], Tensor]) -> str:
    """Compare a reader's function with the part."""
    for N, D, H in ((5, 6, 2), (7, 12, 3)):
        x = torch.arange(float(N * D)).reshape(N, D)
        right = SelfAttention(D, H).split(x[None], H)[0]
        found = torch.as_tensor(answer(x, H))
        if found.shape != right.shape:
            return f"x [{N}, {D}] in {H} heads is {list(right.shape)}, not {list(found.shape)}."
        if not torch.equal(found, right):
            return "The shape is right, but numbers of one token went to others: split the last axis, then swap axes."
    return ""


def split(x: Tensor, H: int) -> Tensor:
    """[N, D] -> [H, N, D / H]."""
    return x.reshape(x.shape[0], H, -1).transpose(0, 1)


def split_without_transpose(x: Tensor, H: int) -> Tensor:
    """The usual mistake: the shape alone."""
    return x.reshape(H, x.shape[0], -1)


QUESTIONS = {
    "8.1": Question(
        judge=expect_number(extra_weights, "All heads together are as wide as the one: D_H = D / H."),
        solution=0,
        wrong=(7 * 512 * 512, 8),
    ),
    "8.2": Question(judge=judge_bytes, solution=64 * 100_000**2 * 2, wrong=(64 * 100_000 * 2, 100_000**2 * 2)),
    "8.3": Question(judge=judge_split, solution=split, wrong=(split_without_transpose,)),
}
