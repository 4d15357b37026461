"""Answers to lesson 17: norms, widths of gated layers, and what experts cost."""

from __future__ import annotations

import torch

from weft.lessons.checking import Question, expect_number
from weft.parts.experts import Experts
from weft.parts.feedforward import FeedForward, GatedFeedForward
from weft.parts.norms import rms_norm


def normed() -> float:
    """The first component of (3, 4) after RMSNorm."""
    return round(float(rms_norm(torch.tensor([3.0, 4.0]), torch.ones(2), epsilon=0.0)[0]), 3)


def equal_width() -> int:
    """The hidden width at which the gated layer has as many weights as the classic one."""
    with torch.device("meta"):
        classic = sum(p.numel() for p in FeedForward(768, bias=False).parameters())
        of_one = sum(p.numel() for p in GatedFeedForward(768, hidden=1, bias=False).parameters())
    return classic // of_one


def weights_per_used() -> float:
    """All experts' weights over those that one token uses."""
    with torch.device("meta"):
        part = Experts(16, 24, experts=64, active=2)
    every = part.up.numel() + part.down.numel()
    return every / (part.active * (part.up[0].numel() + part.down[0].numel()))


QUESTIONS = {
    "17.1": Question(
        expect_number(normed, "the mean of the squares is 12.5; no mean is subtracted.", 1e-9),
        solution=0.849,
        wrong=(0.6, -1.0, 3.0),
    ),
    "17.2": Question(expect_number(equal_width, "3 D h = 8 D^2."), solution=2048, wrong=(3072, 1536)),
    "17.3": Question(expect_number(weights_per_used, "E / A."), solution=32, wrong=(64, 2, 128)),
}
