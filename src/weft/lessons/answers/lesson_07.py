"""Lesson 7: masks and other priors on W."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from weft.lessons.checking import Question, expect_number
from weft.parts.attention import SelfAttention
from weft.parts.attention_context import AttentionContext
from weft.parts.masks import Causal, Window
from weft.parts.token_positions import TokenPositions


def causal_pairs() -> float:
    """Pairs that may look, N = 100."""
    tokens = TokenPositions.run(0, 100, torch.device("cpu"))
    return float(Causal().allows(tokens, tokens).sum())


def tokens_reached() -> float:
    """Inputs that the last output depends on, through 6 layers that see 4 tokens each."""
    x = torch.randn(1, 60, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64, requires_grad=True)
    y, layers = x, [SelfAttention(8, 2).double() for _ in range(6)]
    for layer in layers:
        y = y + layer(y, AttentionContext.of(y, Causal() & Window(4)))
    gradient = torch.autograd.grad(y[0, -1].sum(), x)[0][0].abs().sum(-1)
    return float((gradient > 0).sum())


def judge_mask(answer: Callable[[int], Tensor]) -> str:
    """All but the diagonal."""
    for N in (1, 2, 7):
        found = torch.as_tensor(answer(N)).bool()
        if found.shape != (N, N):
            return f"For N = {N} the mask is [{N}, {N}], not {list(found.shape)}."
        if bool(found.diagonal().any()):
            return "A token still sees itself: the diagonal should be False."
        if int(found.sum()) != N * N - N:
            return "Some token does not see some other one."
    return ""


def all_but_itself(N: int) -> Tensor:
    """A mask by which a token sees all others: not the identity, so False on the diagonal."""
    return ~torch.eye(N, dtype=torch.bool)


def only_itself(N: int) -> Tensor:
    """That mask turned around: a token sees itself alone, which the question must refuse."""
    return torch.eye(N, dtype=torch.bool)


QUESTIONS = {
    "7.1": Question(
        judge=expect_number(causal_pairs, "1 + 2 + ... + N: the first token sees 1, the second 2, and so on."),
        solution=5050,
        wrong=(10_000, 5000, 4950),
    ),
    "7.2": Question(
        judge=expect_number(tokens_reached, "Each layer reaches 3 further; and the token itself counts, too."),
        solution=19,
        wrong=(24, 18, 4),
    ),
    "7.3": Question(judge=judge_mask, solution=all_but_itself, wrong=(only_itself,)),
}
