"""Answers to lesson 14: lengths of mixed sequences, and the best forecast of Brownian motion."""

from __future__ import annotations

import torch

from weft.data.samples import brownian_best
from weft.lessons.checking import Question, expect_number
from weft.parts.embeddings import patchify
from weft.parts.masks import Causal


def joined() -> int:
    """Patches of an image of 48 x 48, and nine words."""
    return int(patchify(torch.zeros(1, 3, 48, 48), 8).shape[1]) + 9


QUESTIONS = {
    "14.1": Question(expect_number(joined, "6 x 6 patches, and the words."), solution=45, wrong=(36, 57, 6)),
    "14.2": Question(
        expect_number(lambda: int(Causal().grid(joined())[-1].sum()), "it stands last: who stands before it?"),
        solution=45,
        wrong=(9, 36, 44),
    ),
    "14.3": Question(
        expect_number(lambda: brownian_best(24, 1000).value, "the mean of 1, 2, ..., 24."),
        solution=12.5,
        wrong=(24, 12, 1),
    ),
}
