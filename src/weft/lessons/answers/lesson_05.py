"""Lesson 5: self-attention without weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from weft.lessons.checking import Question, expect_number
from weft.parts.attention import parameter_free_attention


def weight_among_equals() -> float:
    """A weight of a sequence of 20 equal vectors."""
    vector = torch.randn(1, 1, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return float(parameter_free_attention(vector.expand(1, 20, 5))[1][0, 0, 0])


def judge_layer(answer: Callable[[Tensor], Tensor]) -> str:
    """Compare a reader's function with the part, on sequences of several sizes."""
    for N, D in ((2, 3), (7, 5), (5, 11)):
        X = torch.randn(N, D, generator=torch.Generator().manual_seed(N), dtype=torch.float64)
        right, W = parameter_free_attention(X[None])
        found = torch.as_tensor(answer(X))
        if found.shape != X.shape:
            return f"X [{N}, {D}] should give Y of the same shape, not {tuple(found.shape)}."
        if torch.allclose(found, W[0].T @ X):
            return "The softmax runs over the wrong axis: each row of W sums to 1, not each column."
        if not torch.allclose(found, right[0], atol=1e-8):
            return "The shape is right, the numbers are not: scores X X^T, softmax over j, then W X."
    return ""


def own_layer(X: Tensor) -> Tensor:
    """W X with W = softmax(X X^T)."""
    return torch.softmax(X @ X.T, dim=-1) @ X


def wrong_axis(X: Tensor) -> Tensor:
    """The softmax over i in place of j."""
    return torch.softmax(X @ X.T, dim=0) @ X


def judge_outshone(answer: Any) -> str:
    """Whether w_12 > w_11."""
    X = torch.tensor(answer, dtype=torch.float64)
    if X.dim() != 2 or X.shape[0] != 2:
        return "Give two vectors of the same width: [[1, 2], [3, 4]], for example."
    W = parameter_free_attention(X[None])[1][0]
    if bool(W[0, 1] > W[0, 0]):
        return ""
    return f"Here w_11 = {W[0, 0]:.2f} and w_12 = {W[0, 1]:.2f}. What if the second vector is longer than the first?"


QUESTIONS = {
    "5.1": Question(
        judge=expect_number(weight_among_equals, "All scores of a row are equal, and a row sums to 1.", 1e-6),
        solution=1 / 20,
        wrong=(1.0, 0.0),
    ),
    "5.2": Question(judge=judge_layer, solution=own_layer, wrong=(wrong_axis, lambda X: X)),
    "5.3": Question(judge=judge_outshone, solution=[[1, 0], [3, 0]], wrong=([[1, 0], [0, 1]], [[3, 0], [1, 0]])),
}
