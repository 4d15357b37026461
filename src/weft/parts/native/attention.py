"""Causal attention of short texts, forward and back: without the products above the diagonal, which torch's makes."""

from __future__ import annotations

import ctypes
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from weft.parts.native.library import kernels, suits_in_strides

SHORTEST, LONGEST = 129, 256  # tokens: below torch's is as fast, above the weights of a head do not fit a core's cache
TILE = 16  # numbers of a head that are computed at once


class Heads(ctypes.Structure):
    """A tensor [B, H, T, K] of any strides but the last: `heads` in attention.h."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("row", ctypes.c_int64),
        ("head", ctypes.c_int64),
        ("token", ctypes.c_int64),
    )


def suits_attention(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """Whether `attention` takes these: [B, H, T, K] each, of one shape, 129 to 256 tokens, on a fast unit."""
    T, K = query.shape[2:]
    if not query.shape == key.shape == value.shape or not SHORTEST <= T <= LONGEST or K % TILE:
        return False
    found = kernels() if suits_in_strides(query, key, value) else None
    return found is not None and bool(found.weft_attention_is_fast())


def attention(query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
    """softmax(s Q K^T + causal mask) V [B, H, T, K], laid out as [B, T, H, K], for tensors that `suits_attention`."""
    if not torch.is_grad_enabled():
        return _forward(query, key, value, scale)[0]
    y: Tensor = _Attention.apply(query, key, value, scale)  # type: ignore[no-untyped-call]
    return y


def _heads(x: Tensor) -> Any:
    return ctypes.byref(Heads(x.data_ptr(), *x.stride()[:3]))


def _sizes(x: Tensor) -> Any:
    return (ctypes.c_int64 * 5)(*x.shape, torch.get_num_threads())


def _like(x: Tensor) -> Tensor:
    """An empty tensor [B, H, T, K] in which the heads of a token stand side by side."""
    B, H, T, K = x.shape
    return x.new_empty(B, T, H, K).transpose(1, 2)


def _forward(query: Tensor, key: Tensor, value: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """(Y, log sum_j e^(s q k_j) [B, H, T])."""
    found, y, logs = kernels(), _like(query), query.new_empty(query.shape[:3])
    assert found is not None
    found.weft_attention(*map(_heads, (query, key, value)), scale, _heads(y), logs.data_ptr(), _sizes(query))
    return y, logs


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        y, logs = _forward(query, key, value, scale)
        ctx.save_for_backward(query, key, value, y, logs)
        ctx.scale = scale
        return y

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor | None, ...]:
        (query, key, value, y, logs), scale, dy = ctx.saved_tensors, ctx.scale, slopes[0]
        if torch.is_grad_enabled():  # a second derivative is wanted
            again = F.scaled_dot_product_attention(query, key, value, is_causal=True, scale=scale)
            return *torch.autograd.grad(again, (query, key, value), dy, create_graph=True), None
        dy = dy if dy.stride(-1) == 1 else dy.contiguous()
        found, gradients = kernels(), [_like(query) for _ in range(3)]
        assert found is not None
        found.weft_attention_backward(
            *map(_heads, (query, key, value, y, dy)), scale, logs.data_ptr(), *map(_heads, gradients),
            _sizes(query),
        )  # fmt: skip
        return *gradients, None
