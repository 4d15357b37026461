"""Linear maps, forward and back: bias and its gradient inside of the products, bits that no other row changes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from weft.parts.native.library import kernels, suits

PANEL = 32  # columns of the widest tile in linear.h
FEWEST_ROWS = 32  # below, reading W decides, not the products


def suits_linear(x: Tensor, weight: Tensor, bias: Tensor | None, fewest: int = FEWEST_ROWS) -> bool:
    """Whether `linear` takes these: so many rows at least, not cast to another type on the way."""
    if torch.compiler.is_compiling() or torch.is_autocast_enabled("cpu"):
        return False
    if x.dim() < 2 or x.shape[-1] != weight.shape[1] or x.numel() < fewest * max(x.shape[-1], 1):
        return False
    found = kernels() if suits(x, weight, *(() if bias is None else (bias,))) else None
    return found is not None and bool(found.weft_linear_is_fast())


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """y = x W^T + b for x [..., K], W [N, K] that `suits_linear`."""
    if not torch.is_grad_enabled():
        return _forward(x, weight, bias)
    y: Tensor = _Linear.apply(x, weight, bias)  # type: ignore[no-untyped-call]
    return y


def _forward(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    found, (N, K) = kernels(), weight.shape
    assert found is not None
    y, scratch = x.new_empty(*x.shape[:-1], N), x.new_empty(torch.get_num_threads() * PANEL * K)
    found.weft_linear(
        x.data_ptr(), weight.data_ptr(), None if bias is None else bias.data_ptr(), y.data_ptr(),
        scratch.data_ptr(), *_sizes(x, weight),
    )  # fmt: skip
    return y


def _sizes(x: Tensor, weight: Tensor) -> tuple[int, int, int, int]:
    """(M, N, K, threads)."""
    N, K = weight.shape
    return x.numel() // K, N, K, torch.get_num_threads()


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return _forward(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor | None, ...]:
        (x, weight), dy, wanted = ctx.saved_tensors, slopes[0], ctx.needs_input_grad
        if torch.is_grad_enabled() or type(dy) is not Tensor:  # a second derivative is wanted
            flat = dy.flatten(0, -2)
            return dy @ weight, flat.T @ x.flatten(0, -2), flat.sum(0) if wanted[2] else None
        found, dy, sizes = kernels(), dy.contiguous(), _sizes(x, weight)
        assert found is not None
        M, N, K, _ = sizes
        scratch = dy.new_empty(max(M, N) * PANEL) if K % PANEL else dy
        dx = dW = db = None
        if wanted[0]:
            dx = torch.empty_like(x)
            found.weft_linear_to_x(
                dy.data_ptr(), weight.data_ptr(), dx.data_ptr(), scratch.data_ptr(), *sizes
            )  # fmt: skip
        if wanted[1]:
            dW = torch.empty_like(weight)
            db = dy.new_empty(N) if wanted[2] else None
            found.weft_linear_to_weights(
                dy.data_ptr(), x.data_ptr(), dW.data_ptr(), None if db is None else db.data_ptr(),
                scratch.data_ptr(), *sizes,
            )  # fmt: skip
        elif wanted[2]:
            db = dy.flatten(0, -2).sum(0)
        return dx, dW, db
