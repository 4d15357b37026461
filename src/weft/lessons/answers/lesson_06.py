"""Lesson 6: queries, keys, values, and why 1/sqrt(D_K)."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from weft.lessons.checking import Question, expect_number
from weft.parts.score import weigh
from weft.parts.scores import dot, scaled_dot

Attention = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def spread_of_scores() -> float:
    """The standard deviation of q.k for D_K = 64, measured."""
    random = torch.Generator().manual_seed(0)
    q, k = (torch.randn(2000, 64, generator=random, dtype=torch.float64) for _ in "qk")
    return float(dot(q, k[:500]).std())


def larger_weight() -> float:
    """The weight of a key whose score is 3 above the other's, D_K = 9."""
    q = torch.ones(1, 9, dtype=torch.float64)
    k = torch.stack([torch.full((9,), 3 / 9, dtype=torch.float64), torch.zeros(9, dtype=torch.float64)])
    return float(weigh(scaled_dot(q, k))[0, 0])


def judge_attention(answer: Attention) -> str:
    """Compare a reader's function with the formula, with D_K and D_V that differ."""
    random = torch.Generator().manual_seed(0)
    N, D, D_K, D_V = 5, 7, 16, 3
    X, W_Q, W_K, W_V = (
        torch.randn(*shape, generator=random, dtype=torch.float64) for shape in ((N, D), (D, D_K), (D, D_K), (D, D_V))
    )
    found = torch.as_tensor(answer(X, W_Q, W_K, W_V))
    right = weigh(scaled_dot(X @ W_Q, X @ W_K)) @ (X @ W_V)
    if found.shape != right.shape:
        return f"Z should have one row per token and D_V columns: {tuple(right.shape)}, not {tuple(found.shape)}."
    if torch.allclose(found, weigh(dot(X @ W_Q, X @ W_K)) @ (X @ W_V)):
        return "Almost: divide the scores by sqrt(D_K) before the softmax."
    if not torch.allclose(found, right, atol=1e-8):
        return "The shape is right, the numbers are not. By the root of which width do you divide?"
    return ""


def attend(X: Tensor, W_Q: Tensor, W_K: Tensor, W_V: Tensor) -> Tensor:
    """softmax(Q K^T / sqrt(D_K)) V."""
    Q, K, V = X @ W_Q, X @ W_K, X @ W_V
    return torch.softmax(Q @ K.T / math.sqrt(K.shape[-1]), dim=-1) @ V


def attend_unscaled(X: Tensor, W_Q: Tensor, W_K: Tensor, W_V: Tensor) -> Tensor:
    """Without the scale."""
    return torch.softmax((X @ W_Q) @ (X @ W_K).T, dim=-1) @ (X @ W_V)


def attend_by_input_width(X: Tensor, W_Q: Tensor, W_K: Tensor, W_V: Tensor) -> Tensor:
    """Scaled by sqrt(D) in place of sqrt(D_K)."""
    return torch.softmax((X @ W_Q) @ (X @ W_K).T / math.sqrt(X.shape[-1]), dim=-1) @ (X @ W_V)


QUESTIONS = {
    "6.1": Question(
        judge=expect_number(spread_of_scores, "Variances of independent terms add up; then take the root.", 0.02),
        solution=8,
        wrong=(64, 1),
    ),
    "6.2": Question(
        judge=expect_number(larger_weight, "3 / sqrt(9) = 1. What does the softmax make of 1 and 0?", 0.02),
        solution=math.e / (math.e + 1),
        wrong=(0.95, 0.5),
    ),
    "6.3": Question(judge=judge_attention, solution=attend, wrong=(attend_unscaled, attend_by_input_width)),
}
