"""Answers to lesson 18: how far masks let a stack of blocks look."""

from __future__ import annotations

import torch
from torch import Tensor

from weft.lessons.checking import Question, expect_choice, expect_number

LENGTH = 13


def paths(*bands: tuple[int | None, int]) -> Tensor:
    """[T, T], True where output i depends on input j; each block sees so many tokens back (None: all) and ahead."""
    seen = torch.eye(LENGTH, dtype=torch.float64)
    for back, ahead in bands:
        block = torch.ones(LENGTH, LENGTH, dtype=torch.float64).tril(ahead)
        seen = (block if back is None else block.triu(-back)) @ seen
    return seen > 0


def farthest_back() -> str:
    """A causal block, then one that sees three tokens back."""
    found = max(int(i - j) for i, j in paths((None, 0), (3, 0)).nonzero())
    return "all" if found == LENGTH - 1 else str(found)


def farthest_ahead() -> int:
    """Two blocks that each see one token ahead."""
    return max(int(j - i) for i, j in paths((None, 1), (None, 1)).nonzero())


QUESTIONS = {
    "18.1": Question(
        expect_choice(farthest_back, "the second block sees few tokens, but what has the first block put into them?"),
        solution="all",
        wrong=("3", "6"),
    ),
    "18.2": Question(
        expect_number(
            lambda: int(paths((None, 0), (None, 1)).triu(1).sum()),
            "each output sees one token that it must not. Is there one for the last output?",
        ),
        solution=12,
        wrong=(13, 1, 78),
    ),
    "18.3": Question(
        expect_number(farthest_ahead, "the second block looks one ahead, at a vector that has looked one ahead."),
        solution=2,
        wrong=(1, 12),
    ),
}
