"""Answers to lesson 11: counts in encoders, decoders and encoder-decoders."""

from __future__ import annotations

import weft
from weft.lessons.checking import Question, expect_number
from weft.models.encoder_decoder import EncoderDecoder
from weft.parts.attention import CrossAttention, SelfAttention
from weft.parts.masks import Causal


def original() -> EncoderDecoder:
    """The original transformer, without its weights."""
    model = weft.build("vaswani-base", device="meta")
    assert isinstance(model, EncoderDecoder)
    return model


def attentions() -> int:
    """Of both stacks."""
    return sum(isinstance(part, (SelfAttention, CrossAttention)) for part in original().modules())


def extra_parameters() -> int:
    """Of a decoder block, beyond those of an encoder block."""
    model = original()
    encoder, decoder = (
        sum(weight.numel() for weight in stack.blocks[0].parameters()) for stack in (model.encoder, model.decoder)
    )
    return decoder - encoder


QUESTIONS = {
    "11.1": Question(
        expect_number(lambda: int(Causal().grid(10).sum()), "row i has i entries: 1 + 2 + ... + 10."),
        solution=55,
        wrong=(45, 100, 50),
    ),
    "11.2": Question(
        expect_number(attentions, "each decoder block has two: to the target itself, and to the source."),
        solution=18,
        wrong=(12, 24),
    ),
    "11.3": Question(
        expect_number(extra_parameters, "attention has four maps D x D with biases; a norm stands before or after it."),
        solution=4 * (512 * 512 + 512) + 2 * 512,
        wrong=(4 * 512 * 512, 3 * 512 * 512),
    ),
}
