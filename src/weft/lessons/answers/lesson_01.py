"""Lesson 1: sequences and one set of weights for all lengths."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from weft.lessons.checking import Question, expect_number
from weft.parts.attention_context import AttentionContext
from weft.parts.convolution import Convolution
from weft.parts.embeddings import patchify
from weft.parts.masks import Causal

KERNEL, FAR = 3, 99  # output 100 and input 1 are 99 steps apart


def layers_until_seen() -> float:
    """The smallest number of causal convolutions with which an output sees an input 99 steps before it."""
    layer = Convolution(4, KERNEL).double()
    x = torch.randn(1, FAR + 1, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0), requires_grad=True)
    y, depth = x, 0
    while True:
        y, depth = layer(y, AttentionContext.of(y, Causal())), depth + 1
        if torch.autograd.grad(y[0, -1].sum(), x, retain_graph=True)[0][0, 0].abs().sum() > 0:
            return depth


def judge_patches(answer: Callable[[Tensor, int], Tensor]) -> str:
    """Compare a reader's function with `patchify` on images whose sides differ."""
    for height, width, P in ((4, 6, 2), (9, 3, 3), (5, 10, 5)):
        image = torch.arange(height * width, dtype=torch.float32).reshape(height, width)
        right = patchify(image[None, None], P)[0]
        found = torch.as_tensor(answer(image, P))
        if found.shape != right.shape:
            return (
                f"An image {height} x {width} with P = {P} has patches {tuple(right.shape)}, not {tuple(found.shape)}."
            )
        if not torch.equal(found, right):
            return "The shape is right, the order is not: are the two axes inside a patch next to each other?"
    return ""


def cut(image: Tensor, P: int) -> Tensor:
    """Patches row by row: split both axes, bring the two inner ones together."""
    height, width = image.shape
    return image.reshape(height // P, P, width // P, P).transpose(1, 2).reshape(-1, P * P)


def cut_without_transpose(image: Tensor, P: int) -> Tensor:
    """The usual mistake: rows of pixels in place of patches."""
    return image.reshape(-1, P * P)


QUESTIONS = {
    "1.1": Question(
        judge=expect_number(
            lambda: 1000.0, "Does any matrix in the equations have a side of length N? Count the weights in both cases."
        ),
        solution=1000,
        wrong=(100_000, 0),
    ),
    "1.2": Question(
        judge=expect_number(layers_until_seen, "Each layer reaches k - 1 = 2 steps further. How many make 99?"),
        solution=50,
        wrong=(33, 49, 99),
    ),
    "1.3": Question(judge=judge_patches, solution=cut, wrong=(cut_without_transpose,)),
}
