"""Lesson 9: positions."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

import weft
from weft.foundation.errors import LengthError
from weft.lessons.checking import Question, expect_choice, expect_number
from weft.models.decoder import DecoderSpec
from weft.models.part_specs import AttentionSpec
from weft.models.position_specs import LearnedSpec, RotarySpec, SinusoidalSpec
from weft.parts.positions import sinusoids

SPEC = DecoderSpec(vocabulary=11, length=64, width=16, layers=2, mixer=AttentionSpec(heads=2))
KINDS = {"sinusoidal": SinusoidalSpec(), "rotary": RotarySpec()}


def most_tokens() -> float:
    """The longest text that a model with 64 learned positions reads."""
    model, length = weft.build(SPEC.replace(positions=LearnedSpec()), 0), 1
    with torch.no_grad():
        while True:
            try:
                model(torch.zeros(1, length + 1, dtype=torch.long))
            except LengthError:
                return length
            length += 1


def unmoved() -> str:
    """The kind whose logits are the same at positions 0, 1, ... and 100, 101, ..."""
    tokens, found = torch.arange(11)[None], []
    for name, positions in KINDS.items():
        model = weft.build(SPEC.replace(positions=positions), 0).double().eval()
        with torch.no_grad():
            here, there = (model(tokens, positions=torch.arange(11) + shift).logits for shift in (0, 100))
        if torch.allclose(here, there, atol=1e-6):
            found.append(name)
    return found[0] if len(found) == 1 else ""


def judge_sinusoids(answer: Callable[[int, int], Tensor]) -> str:
    """Compare a reader's function with the part."""
    for t, D in ((0, 4), (3, 8), (50, 6)):
        right = sinusoids(torch.tensor(t), D, torch.float64)
        found = torch.as_tensor(answer(t, D), dtype=torch.float64)
        if found.shape != right.shape:
            return f"f({t}, {D}) has {D} numbers, not {list(found.shape)}."
        if not torch.allclose(found, right, atol=1e-5):
            return "The shape is right: do a sine and a cosine of the same angle stand next to each other?"
    return ""


def wave(t: int, D: int) -> Tensor:
    """sin and cos of t / 10000^(2i/D), next to each other."""
    angles = [t / 10000 ** (2 * i / D) for i in range(D // 2)]
    return torch.tensor([f(angle) for angle in angles for f in (math.sin, math.cos)], dtype=torch.float64)


def waves_in_halves(t: int, D: int) -> Tensor:
    """All sines before all cosines."""
    angles = [t / 10000 ** (2 * i / D) for i in range(D // 2)]
    return torch.tensor([f(angle) for f in (math.sin, math.cos) for angle in angles], dtype=torch.float64)


QUESTIONS = {
    "9.1": Question(
        judge=expect_number(most_tokens, "One row per position: what would be added to the next token?"),
        solution=64,
        wrong=(63, 65, 4096),
    ),
    "9.2": Question(
        judge=expect_choice(unmoved, "Which of the two depends on the difference of positions only?"),
        solution="rotary",
        wrong=("sinusoidal",),
    ),
    "9.3": Question(judge=judge_sinusoids, solution=wave, wrong=(waves_in_halves,)),
}
