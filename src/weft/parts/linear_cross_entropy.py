"""Cross-entropy of a linear map's outputs, with logits that never exist all at once.

z = W h + b,   loss = - sum_n log softmax(z_n)[y_n]

A few rows of h [N, D] at a time: their logits [n, C] become log p, then the loss, then its slope p - 1_y in the same
memory, which gives these rows' share of the gradients at once. So the backward pass has nothing left to compute, and
the logits are made once, where checkpoints would make them twice.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from weft.foundation.errors import WeftError
from weft.foundation.numerics import wide, widen
from weft.parts.linear import linear
from weft.parts.products import slope_of_input, slope_of_weights


def linear_cross_entropy(
    hidden: Tensor,
    W: Tensor,
    b: Tensor | None,
    labels: Tensor,
    rows: int,
    smoothing: float = 0.0,
    cap: float | None = None,
) -> Tensor:
    """- sum log p(label) for h [N, D], W [C, D], b [C] and labels [N], so many `rows` of h at a time.

    With smoothing s over C classes it is - (1 - s) log p(y) - s mean_c log p(c). A cap makes the logits
    cap tanh(z / cap). In float32 or wider.
    """
    if not torch.is_grad_enabled():
        return _add_up(hidden, W, b, _Terms(labels, rows, smoothing, cap), None)
    terms = _Terms(labels, rows, smoothing, cap)
    total: Tensor = _LinearCrossEntropy.apply(hidden, W, b, terms)  # type: ignore[no-untyped-call]
    return total


class _Terms(NamedTuple):
    labels: Tensor
    rows: int
    smoothing: float
    cap: float | None


class _Gradients:
    """Those of h, W and b that are wanted, for the sum of all rows; W's adds up in float32 or wider."""

    def __init__(self, hidden: Tensor, W: Tensor, b: Tensor | None, wanted: tuple[bool, ...]) -> None:
        self.hidden = torch.empty_like(hidden) if wanted[0] else None
        start = torch.empty if len(hidden) else torch.zeros
        self.W = start(W.shape, dtype=wide(W.dtype), device=W.device) if wanted[1] else None
        self.b = None if b is None or not wanted[2] else torch.zeros_like(widen(b))

    def add(self, first: int, hidden: Tensor, W: Tensor, slope: Tensor) -> None:
        """The share of rows `first`, ...: dh = s W, dW = s^T h, db = sum s for the slope s [n, C] of their logits."""
        narrow = slope.to(hidden.dtype)
        if self.hidden is not None:
            slope_of_input(narrow, W, self.hidden[first : first + len(slope)])
        if self.W is not None:
            if narrow.dtype == self.W.dtype:
                slope_of_weights(narrow, hidden, self.W, add=first > 0)
            else:
                share = narrow.mT @ hidden
                self.W.copy_(share) if first == 0 else self.W.add_(share)
        if self.b is not None:
            self.b += slope.sum(0)


def _add_up(hidden: Tensor, W: Tensor, b: Tensor | None, terms: _Terms, gradients: _Gradients | None) -> Tensor:
    """The loss over all rows; adds up the gradients where they are given."""
    W = W.to(hidden.dtype)
    total = widen(hidden.new_zeros(()))
    for first in range(0, len(hidden), terms.rows):
        total += _add_chunk(first, hidden[first : first + terms.rows], W, b, terms, gradients)
    return total


def _add_chunk(
    first: int, hidden: Tensor, W: Tensor, b: Tensor | None, terms: _Terms, gradients: _Gradients | None
) -> Tensor:
    """The loss of rows `first`, ...; its logits are gone on return."""
    smoothing, labels = terms.smoothing, terms.labels[first : first + terms.rows, None]
    log_p, bend = _log_p(hidden, W, b, terms.cap)
    loss = (smoothing - 1) * log_p.gather(-1, labels).sum()
    if smoothing:
        loss -= smoothing * log_p.mean(-1).sum()
    if gradients is not None:
        slope = log_p.exp_()
        slope.scatter_add_(-1, labels, slope.new_full(labels.shape, smoothing - 1))
        if smoothing:
            slope -= smoothing / len(W)
        gradients.add(first, hidden, W, slope if bend is None else slope.mul_(bend))
    return loss


def _log_p(hidden: Tensor, W: Tensor, b: Tensor | None, cap: float | None) -> tuple[Tensor, Tensor | None]:
    """log softmax(z) [n, C], and with a cap the slope 1 - (z / cap)^2 of z = cap tanh(u / cap)."""
    z = widen(linear(hidden, W, None if b is None else b.to(W.dtype)))
    if cap is None:
        return torch.log_softmax(z, -1), None
    z = z.div_(cap).tanh_()
    return torch.log_softmax(z * cap, -1), 1 - z.square_()


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, W: Tensor, b: Tensor | None, terms: _Terms) -> Tensor:
        gradients = _Gradients(hidden, W, b, ctx.needs_input_grad)
        ctx.gradients, ctx.dtypes = gradients, (W.dtype, None if b is None else b.dtype)
        return _add_up(hidden, W, b, terms, gradients)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        if ctx.gradients is None:
            raise WeftError("this loss was sent back before, and its gradients are gone: compute the loss again")
        found, ctx.gradients = ctx.gradients, None
        h, W, b = (None if g is None else g.mul_(slope.to(g.dtype)) for g in (found.hidden, found.W, found.b))
        W_type, b_type = ctx.dtypes
        return h, None if W is None else W.to(W_type), None if b is None else b.to(b_type), None
