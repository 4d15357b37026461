"""Answers to lesson 16: sizes of weights and caches, and a softmax in blocks."""

from __future__ import annotations

import torch

import weft
from weft.lessons.checking import Question, expect_number
from weft.models.decoder import Decoder


def weights_in_gib() -> float:
    """Of one head over 65,536 tokens in float32."""
    one = torch.empty(65_536, 65_536, device="meta")
    return one.numel() * one.element_size() / 2**30


def sum_of_exponentials() -> float:
    """l of the example by hand, relative to the largest of all scores."""
    e = torch.tensor([2.0, 5.0, 1.0, 7.0, 3.0])
    return round(float(torch.exp(e - e.max()).sum()), 4)


def cache_growth() -> int:
    """The numbers in a decoder's cache after 20 tokens against those after 10."""
    model = weft.build(weft.preset("nano-gpt").replace(width=16, layers=1))
    assert isinstance(model, Decoder)
    counts = []
    for length in (10, 20):
        state = model.make_state()
        with torch.no_grad():
            model(torch.zeros(1, length, dtype=torch.long), state=state)
        counts.append(sum(slots.used for slots in state.cache_slots.values()))
    return counts[1] // counts[0]


QUESTIONS = {
    "16.1": Question(
        expect_number(weights_in_gib, "65,536 = 2^16, so N^2 = 2^32 numbers of four bytes."),
        solution=16,
        wrong=(4, 0.25),
    ),
    "16.2": Question(
        expect_number(sum_of_exponentials, "relative to the largest score, 7: exp(-5) + exp(-2) + ...", 1e-9),
        solution=1.1629,
        wrong=(1.0672, 1.0),
    ),
    "16.3": Question(
        expect_number(cache_growth, "each token has one key and one value per head and layer."),
        solution=2,
        wrong=(1, 4),
    ),
}
