"""Lesson 2: recurrent translation and its bottleneck."""

from __future__ import annotations

import torch

from weft.lessons.checking import Question, expect_number
from weft.models.build import build
from weft.models.recurrent_seq2seq import RecurrentSeq2Seq, RecurrentSeq2SeqSpec
from weft.parts.recurrence import Recurrent

HIDDEN, LETTERS = 128, 1000


def numbers_seen(attention: str) -> float:
    """How many numbers of the source a decoder is given: the summary, or all states."""
    spec = RecurrentSeq2SeqSpec(
        vocabulary=8, width=4, hidden=HIDDEN, bidirectional=False, attention=attention, length=LETTERS
    )
    model = build(spec, 0)
    assert isinstance(model, RecurrentSeq2Seq)
    with torch.no_grad():
        memory = model.encode(torch.zeros(1, LETTERS, dtype=torch.long))
    assert memory.summary is not None
    return float(memory.summary.numel() if attention == "none" else memory.hidden.numel())


def steps_between() -> float:
    """Steps on the gradient's way from s_1 to x_1, counted by a net whose gradient halves at every step."""
    T = 10
    net = Recurrent("rnn", 1, 1).double()
    weights = dict(net.net.named_parameters())
    with torch.no_grad():
        for name, weight in weights.items():
            weight.fill_(0.5 if name == "weight_hh_l0" else 0.0)
        weights["weight_ih_l0"].fill_(1.0)
    x = torch.zeros(1, T, 1, dtype=torch.float64, requires_grad=True)
    h = torch.zeros(1, 1, dtype=torch.float64)
    for t in range(T):
        (h,) = net.step(x[:, t], (h,))
    (s,) = net.step(torch.zeros(1, 1, dtype=torch.float64), (h,))  # the decoder's first step, from c = h_T
    gradient = torch.autograd.grad(s.sum(), x)[0][0, 0, 0]
    halvings = -torch.log2(gradient)  # each step after the first multiplies by 0.5
    return float(halvings.round()) + 1


QUESTIONS = {
    "2.1": Question(
        judge=expect_number(lambda: numbers_seen("none"), "The decoder is given h_T, and nothing else."),
        solution=128,
        wrong=(128_000, 1000),
    ),
    "2.2": Question(
        judge=expect_number(lambda: numbers_seen("bilinear"), "There is one state h_i per letter read."),
        solution=128_000,
        wrong=(128, 1000),
    ),
    "2.3": Question(
        judge=expect_number(steps_between, "x_1 enters at the first encoder step and passes all of them, then s_1."),
        solution=11,
        wrong=(1, 10, 9),
    ),
}
