"""GELU by tanh, forward and back in one pass over memory each."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from weft.parts.native.library import kernels


def gelu_tanh(x: Tensor) -> Tensor:
    """x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) for an x that `suits`."""
    if not (torch.is_grad_enabled() and x.requires_grad):
        return _forward(x)
    y: Tensor = _GeluTanh.apply(x)  # type: ignore[no-untyped-call]
    return y


def _forward(x: Tensor) -> Tensor:
    y, found = torch.empty_like(x), kernels()
    assert found is not None
    found.weft_gelu(x.data_ptr(), y.data_ptr(), x.numel(), torch.get_num_threads())
    return y


class _GeluTanh(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return _forward(x)

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> Tensor:
        (x,), found, dy = ctx.saved_tensors, kernels(), slopes[0].contiguous()
        if torch.is_grad_enabled() or type(dy) is not Tensor:  # a second derivative is wanted
            return torch.ops.aten.gelu_backward(dy, x, approximate="tanh")
        assert found is not None
        dx = torch.empty_like(x)
        found.weft_gelu_backward(x.data_ptr(), dy.data_ptr(), dx.data_ptr(), x.numel(), torch.get_num_threads())
        return dx
