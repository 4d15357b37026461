"""Answers to lesson 12: distributions that are sampled from, and the least loss of a repeated text."""

from __future__ import annotations

import math

import torch

from weft.inference.decoding.sampling import Sampling, distribution
from weft.lessons.checking import Question, expect_number


def cooled() -> float:
    """The first of three symbols at temperature 0.5."""
    return round(float(distribution(torch.tensor([2.0, 1.0, 0.0]), Sampling(temperature=0.5))[0]), 3)


def nucleus() -> float:
    """The second of four symbols with top-p 0.7."""
    return round(float(distribution(torch.tensor([0.5, 0.3, 0.15, 0.05]).log(), Sampling(top_p=0.7))[1]), 3)


QUESTIONS = {
    "12.1": Question(
        expect_number(cooled, "divide the logits by 0.5 first: 4, 2 and 0; then the softmax.", tolerance=1e-9),
        solution=0.867,
        wrong=(0.665, 0.5, 0.844),
    ),
    "12.2": Question(
        expect_number(nucleus, "the first two symbols reach 0.7; what remains is divided by its sum.", tolerance=1e-9),
        solution=0.375,
        wrong=(0.3, 0.0),
    ),
    "12.3": Question(
        expect_number(
            lambda: round(16 * math.log(32) / 32, 3), "the first half costs ln 32 each, the second half nothing.", 1e-9
        ),
        solution=1.733,
        wrong=(3.466, 0.0),
    ),
}
