"""Answers to lesson 20: bits per weight, bits per byte, and the share of an embedding."""

from __future__ import annotations

import math

import gguf

import weft
from weft.lessons.checking import Question, expect_number
from weft.models.decoder import Decoder


def bits_per_weight() -> float:
    """Of Q8_0, as the format's own library says it."""
    weights, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType.Q8_0]
    return 8 * size / weights


def embedding_share() -> float:
    """Of nano-llama with 100 letters, in percent."""
    model = weft.build(weft.preset("nano-llama").replace(vocabulary=100), device="meta")
    assert isinstance(model, Decoder)
    return round(100 * model.embedding.weight.numel() / sum(weight.numel() for weight in model.parameters()), 1)


QUESTIONS = {
    "20.1": Question(
        expect_number(bits_per_weight, "32 x 8 bits and 16 more, shared by 32 weights."), solution=8.5, wrong=(8, 10)
    ),
    "20.2": Question(
        expect_number(lambda: round(1.2 / math.log(2), 2), "a bit is ln 2 nats.", 1e-9),
        solution=1.73,
        wrong=(0.83, 1.2),
    ),
    "20.3": Question(
        expect_number(embedding_share, "100 rows of 128 numbers, of all parameters of the model.", 1e-9),
        solution=1.7,
        wrong=(10.0, 50.0),
    ),
}
