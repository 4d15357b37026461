"""Answers to lesson 13: patches, their number, and what it costs."""

from __future__ import annotations

import torch

import weft
from weft.lessons.checking import Question, expect_number
from weft.models.vision import VisionSpec
from weft.parts.embeddings import patchify


def tokens_of_vit() -> int:
    """What the first block of ViT-B/16 sees."""
    spec = weft.preset("vit-b16")
    assert isinstance(spec, VisionSpec)
    return spec.side**2 + spec.extra


def entries(patch: int) -> int:
    """Of one attention matrix over the patches of a small image."""
    return int(patchify(torch.zeros(1, 3, 32, 32), patch).shape[1]) ** 2


QUESTIONS = {
    "13.1": Question(
        expect_number(tokens_of_vit, "14 x 14 patches, and one token that is no patch."), solution=197, wrong=(196, 224)
    ),
    "13.2": Question(
        expect_number(lambda: patchify(torch.zeros(1, 3, 224, 224), 16).shape[-1], "16 x 16 pixels of three colors."),
        solution=768,
        wrong=(256, 196),
    ),
    "13.3": Question(
        expect_number(
            lambda: entries(2) // entries(4), "four times as many tokens; attention compares each with each."
        ),
        solution=16,
        wrong=(2, 4),
    ),
}
