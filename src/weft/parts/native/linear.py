"""Linear maps, forward and back: bias and its gradient inside of the products, bits that no other row changes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from weft.parts.native.library import kernels, suits

PANEL = 32  # columns of the widest tile in linear.h
FEWEST_ROWS = 16  # below, reading W decides, not the products
LEAST_WORK = 1 << 18  # multiplications below which waking another thread takes longer


def suits_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, fewest: int = FEWEST_ROWS) -> bool:
    """Whether `linear` takes these: so many rows at least, not cast to another type on the way."""
    if torch.compiler.is_compiling() or torch.is_autocast_enabled("cpu"):
        return False
    if x.dim() < 2 or x.shape[-1] != weight.shape[-1] or x.numel() < fewest * x.shape[-1] or not weight.numel():
        return False
    if bias is None:
        return _is_fast() and suits(x, weight)
    return bias.shape == weight.shape[:1] and _is_fast() and suits(x, weight, bias)


def suits_slopes(dy: Tensor, x: Tensor, weight: Tensor) -> bool:
    """Whether `linear_to_x` and `linear_to_weights` take dy [M, N], x or dx [M, K], W or dW [N, K]: enough rows."""
    fits = (*dy.shape, weight.shape[1]) == (*x.shape[:1], *weight.shape) and x.shape[1] == weight.shape[1]
    return fits and len(dy) >= FEWEST_ROWS and weight.numel() > 0 and _is_fast() and suits(dy, x, weight)


def _is_fast() -> bool:
    found = kernels()
    return found is not None and bool(found.weft_linear_is_fast())


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """y = x W^T + b for x [..., K], W [N, K] that `suits_linear`."""
    if not torch.is_grad_enabled():
        return linear_into(x.new_empty(*x.shape[:-1], len(weight)), x, weight, bias)
    y: Tensor = _Linear.apply(x, weight, bias)  # type: ignore[no-untyped-call]
    return y


def linear_into(y: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None = None, add: bool = False) -> Tensor:
    """The same into y [..., N], or x W^T added to what it holds; without gradients."""
    found, sizes = kernels(), _sizes(x, weight)
    assert found is not None
    scratch = x.new_empty(torch.get_num_threads() * PANEL * weight.shape[1])
    found.weft_linear(x.data_ptr(), weight.data_ptr(), _place(bias), y.data_ptr(), scratch.data_ptr(), *sizes, int(add))
    return y


def linear_to_x(dx: Tensor, dy: Tensor, weight: Tensor, add: bool = False) -> Tensor:
    """dx = dy W for dy [..., N] into dx [..., K]; or added to what it holds."""
    found, (M, N, K, threads) = kernels(), _sizes(dx, weight)
    assert found is not None
    scratch = dy.new_empty(N * PANEL) if K % PANEL else dy
    found.weft_linear_to_x(
        dy.data_ptr(), weight.data_ptr(), dx.data_ptr(), scratch.data_ptr(), M, N, K, threads, int(add)
    )  # fmt: skip
    return dx


def linear_to_weights(dW: Tensor, dy: Tensor, x: Tensor, db: Tensor | None = None, add: bool = False) -> Tensor:
    """dW = dy^T x and db = sum of dy over the rows, into dW [N, K] and db [N]; or added to what they hold."""
    found, (M, N, K, threads) = kernels(), _sizes(x, dW)
    assert found is not None
    scratch = dy.new_empty(M * PANEL) if K % PANEL else dy
    found.weft_linear_to_weights(
        dy.data_ptr(), x.data_ptr(), dW.data_ptr(), _place(db), scratch.data_ptr(), M, N, K, threads, int(add)
    )  # fmt: skip
    return dW


def _sizes(x: Tensor, weight: Tensor) -> tuple[int, int, int, int]:
    """(M, N, K, threads)."""
    N, K = weight.shape
    return x.numel() // K, N, K, 1 if x.numel() * N < LEAST_WORK else torch.get_num_threads()


def _place(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return linear_into(x.new_empty(*x.shape[:-1], len(weight)), x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor | None, ...]:
        (x, weight), dy, wanted = ctx.saved_tensors, slopes[0], ctx.needs_input_grad
        if torch.is_grad_enabled() or type(dy) is not Tensor:  # a second derivative is wanted
            flat = dy.flatten(0, -2)
            return dy @ weight, flat.T @ x.flatten(0, -2), flat.sum(0) if wanted[2] else None
        dy = dy.contiguous()
        dx = linear_to_x(torch.empty_like(x), dy, weight) if wanted[0] else None
        dW = db = None
        if wanted[1]:
            db = dy.new_empty(len(weight)) if wanted[2] else None
            dW = linear_to_weights(torch.empty_like(weight), dy, x, db)
        elif wanted[2]:
            db = dy.flatten(0, -2).sum(0)
        return dx, dW, db
