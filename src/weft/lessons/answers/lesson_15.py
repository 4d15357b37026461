"""Answers to lesson 15: reach of convolutions, and what models keep while they write."""

from __future__ import annotations

from functools import cache

import torch

import weft
from weft.inspection.analysis.reach import gradient_reach
from weft.lessons.checking import Question, expect_number
from weft.parts.linear_attention import empty_sums


@cache
def layers_of_convolution(kernel: int, distance: int) -> int:
    """The fewest layers over which an output depends on an input at this distance."""
    spec = weft.preset("nano-gpt").replace(
        width=8,
        length=distance + 1,
        mixer=({"kind": "convolution", "kernel": kernel},),
        positions={"kind": "none"},
        initialization={"scheme": "fan-in"},
    )
    tokens = torch.arange(distance + 1) % 200

    def reaches(layers: int) -> bool:
        # In float32 so long a product of small slopes would be rounded to zero.
        model = weft.build(spec.replace(layers=layers), dtype=torch.float64)
        return bool(gradient_reach(model, tokens).matrix[-1, 0] > 0)

    layers = -(-distance // (kernel - 1))
    return layers if reaches(layers) and not reaches(layers - 1) else -1


def kept_by_linear_attention(width: int, heads: int, layers: int) -> int:
    """S and z of all layers."""
    key = torch.empty(1, heads, 1, width // heads, device="meta")
    return layers * sum(tensor.numel() for tensor in empty_sums(key, key))


QUESTIONS = {
    "15.1": Question(
        expect_number(lambda: layers_of_convolution(5, 40), "each layer looks four tokens further back."),
        solution=10,
        wrong=(8, 9, 40),
    ),
    "15.2": Question(
        expect_number(lambda: 2 * torch.empty(12, 1000, 512, device="meta").numel(), "a key and a value, each of 512."),
        solution=12_288_000,
        wrong=(6_144_000, 24_576_000),
    ),
    "15.3": Question(
        expect_number(
            lambda: kept_by_linear_attention(512, 8, 12), "each head has a matrix S of 64 x 64 numbers, and z of 64."
        ),
        solution=12 * 8 * (64 * 64 + 64),
        wrong=(12 * 512 * 512, 12 * 8 * 64 * 64),
    ),
}
