"""Lesson 3: attention cures the bottleneck."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from weft.lessons.checking import Question, expect_choice, expect_number
from weft.models.build import build
from weft.models.recurrent_seq2seq import RecurrentSeq2Seq, RecurrentSeq2SeqSpec
from weft.parts.score import weigh


def scores_computed() -> float:
    """The size of the alignment of 10 target tokens over 30 source tokens."""
    model = build(RecurrentSeq2SeqSpec(vocabulary=8, width=4, hidden=4), 0)
    assert isinstance(model, RecurrentSeq2Seq)
    with torch.no_grad():
        out = model(torch.zeros(1, 30, dtype=torch.long), torch.zeros(1, 10, dtype=torch.long))
    return float(out.auxiliary["alignment"].numel())


def context_of_equals() -> str:
    """What equal scores make of random states."""
    h = torch.randn(7, 5, generator=torch.Generator().manual_seed(0))
    c = weigh(torch.zeros(1, 7)) @ h
    kinds = {"the mean of the states": h.mean(0), "the last state": h[-1], "zero": torch.zeros(5)}
    return next(name for name, value in kinds.items() if torch.allclose(c[0], value, atol=1e-6))


def judge_context(answer: Callable[[Tensor, Tensor], Tensor]) -> str:
    """Compare a reader's function with softmax and weighted sum."""
    random = torch.Generator().manual_seed(0)
    e, h = (torch.randn(*size, generator=random, dtype=torch.float64) for size in ((3, 7), (7, 5)))
    found = torch.as_tensor(answer(e, h))
    if found.shape != (3, 5):
        return f"There is one context of width D per step: [3, 5], not {list(found.shape)}."
    if torch.allclose(found, e @ h):
        return "The scores are no weights yet: the softmax over i is missing."
    return "" if torch.allclose(found, weigh(e) @ h) else "Softmax over the source (the last axis of e), then sum a h."


def context(e: Tensor, h: Tensor) -> Tensor:
    """c_t = sum_i a_ti h_i."""
    return torch.softmax(e, dim=-1) @ h


def context_over_steps(e: Tensor, h: Tensor) -> Tensor:
    """The softmax over the wrong axis."""
    return torch.softmax(e, dim=0) @ h


QUESTIONS = {
    "3.1": Question(
        judge=expect_number(scores_computed, "Every step of the decoder compares with every state of the encoder."),
        solution=300,
        wrong=(30, 10, 40),
    ),
    "3.2": Question(
        judge=expect_choice(context_of_equals, "What does the softmax make of equal scores?"),
        solution="the mean of the states",
        wrong=("zero", "the last state"),
    ),
    "3.3": Question(judge=judge_context, solution=context, wrong=(context_over_steps, lambda e, h: e @ h)),
}
