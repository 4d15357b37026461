"""Layer norm, forward and back in one pass over memory each."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from weft.parts.native.library import kernels

PIECES = 16  # of the rows, whose sums are added in order: the bits do not depend on the number of threads


def layer_norm(x: Tensor, gamma: Tensor, beta: Tensor | None, epsilon: float) -> Tensor:
    """y = (x - mean x) / sqrt(var x + eps) * gamma + beta over the last axis, for tensors that `suit`."""
    if not torch.is_grad_enabled():
        return _forward(x, gamma, beta, epsilon)[0]
    y: Tensor = _LayerNorm.apply(x, gamma, beta, epsilon)  # type: ignore[no-untyped-call]
    return y


def _forward(x: Tensor, gamma: Tensor, beta: Tensor | None, epsilon: float) -> tuple[Tensor, Tensor, Tensor]:
    """(y, mean, 1 / sqrt(var + eps)), the latter two [rows]."""
    D, found = x.shape[-1], kernels()
    assert found is not None
    rows = x.numel() // max(D, 1)
    y, mean, root = torch.empty_like(x), x.new_empty(rows), x.new_empty(rows)
    found.weft_layer_norm(
        x.data_ptr(), gamma.data_ptr(), None if beta is None else beta.data_ptr(), epsilon, y.data_ptr(),
        mean.data_ptr(), root.data_ptr(), rows, D, torch.get_num_threads(),
    )  # fmt: skip
    return y, mean, root


class _LayerNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, gamma: Tensor, beta: Tensor | None, epsilon: float) -> Tensor:
        y, mean, root = _forward(x, gamma, beta, epsilon)
        ctx.save_for_backward(x, gamma, beta, mean, root)
        ctx.epsilon = epsilon
        return y

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor | None, ...]:
        x, gamma, beta, mean, root = ctx.saved_tensors
        found, dy, D = kernels(), slopes[0].contiguous(), x.shape[-1]
        if torch.is_grad_enabled() or type(dy) is not Tensor:  # a second derivative is wanted
            y = F.layer_norm(x, (D,), gamma, beta, ctx.epsilon)
            wanted = [t for t, needed in zip((x, gamma, beta), ctx.needs_input_grad, strict=False) if needed]
            again = iter(torch.autograd.grad(y, wanted, dy, create_graph=True))
            return *(next(again) if needed else None for needed in ctx.needs_input_grad[:3]), None
        assert found is not None
        rows = x.numel() // max(D, 1)
        dx, partial = torch.empty_like(x), x.new_empty(PIECES, 2, D)
        found.weft_layer_norm_backward(
            x.data_ptr(), gamma.data_ptr(), mean.data_ptr(), root.data_ptr(), dy.data_ptr(), dx.data_ptr(),
            partial.data_ptr(), PIECES, rows, D, torch.get_num_threads(),
        )  # fmt: skip
        needs_gamma, needs_beta = ctx.needs_input_grad[1:3]
        return dx, partial[0, 0].clone() if needs_gamma else None, partial[0, 1].clone() if needs_beta else None, None
