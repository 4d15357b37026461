"""Lesson 4: attention as a soft look-up, and what scores can say."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from weft.lessons.checking import Question, expect_choice, expect_number
from weft.parts.lookup import soft_lookup
from weft.parts.scores import additive, build_score

AdditiveScore = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
KINDS = {
    "dot": "dot",
    "scaled dot": "scaled-dot",
    "bilinear": "bilinear",
    "additive": "additive",
    "linear layer": "concatenated",
    "linear attention": "linear",
}


def weight_of_the_first() -> float:
    """Scores 2, 1, 0 at temperature 0.5."""
    q, K = torch.ones(1, 1, dtype=torch.float64), torch.tensor([[2.0], [1.0], [0.0]], dtype=torch.float64)
    return float(soft_lookup(q, K, K, 0.5)[1][0, 0])


def blind_score() -> str:
    """The score whose weights are the same for two different queries."""
    random = torch.Generator().manual_seed(0)
    q, k = (torch.randn(1, 1, n, 5, generator=random) for n in (2, 8))
    found = []
    for name, kind in KINDS.items():
        score = build_score(kind, 5, 5)
        weights = score.weigh(score(q, k))[0, 0]
        if torch.allclose(weights[0], weights[1], atol=1e-5):
            found.append(name)
    return found[0] if len(found) == 1 else ""


def judge_additive(answer: AdditiveScore) -> str:
    """Compare a reader's function with the part."""
    random = torch.Generator().manual_seed(1)
    D_Q, D_K, F, S = 3, 5, 7, 11
    sizes = ((D_Q,), (S, D_K), (F, D_Q), (F, D_K), (F,))
    q, K, W, U, v = (torch.randn(*size, generator=random, dtype=torch.float64) for size in sizes)
    found = torch.as_tensor(answer(q, K, W, U, v))
    right = additive(q[None, None, None], K[None, None], W[None], U[None], v[None])[0, 0, 0]
    if found.shape != right.shape:
        return f"There is one score per key: shape ({S},), not {tuple(found.shape)}."
    return "" if torch.allclose(found, right, atol=1e-8) else "v^T tanh(W q + U k_j): what stands inside the tanh?"


def own_additive(q: Tensor, K: Tensor, W: Tensor, U: Tensor, v: Tensor) -> Tensor:
    """v^T tanh(W q + U k_j) for all j."""
    return torch.tanh(W @ q + K @ U.T) @ v


def without_tanh(q: Tensor, K: Tensor, W: Tensor, U: Tensor, v: Tensor) -> Tensor:
    """The linear layer in disguise."""
    return (W @ q + K @ U.T) @ v


QUESTIONS = {
    "4.1": Question(
        judge=expect_number(weight_of_the_first, "Divide by 0.5 first: the softmax of 4, 2 and 0.", 0.01),
        solution=0.867,
        wrong=(0.665, 0.506, 1.0),
    ),
    "4.2": Question(
        judge=expect_choice(blind_score, "In which formula can the part with q be taken out of the softmax?"),
        solution="linear layer",
        wrong=("dot", "linear attention"),
    ),
    "4.3": Question(judge=judge_additive, solution=own_additive, wrong=(without_tanh,)),
}
