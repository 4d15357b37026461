"""FlashAttention, to be read: exact softmax attention over blocks of keys, of which no row is ever whole in memory.

A softmax needs the largest score and the sum of all exponentials. Both, and the weighted sum of values, can be kept
while blocks of keys come one after the other (Milakov and Gimelshein 2018). For one query and scores e_j = s q^T k_j:

    m' = max(m, max_j e_j)                                   running maximum
    l' = l exp(m - m') + sum_j exp(e_j - m')                 running sum, what it had rescaled to the new maximum
    y' = y exp(m - m') + sum_j exp(e_j - m') v_j             running output; at the end y / l

The backward pass keeps Y and L = m + log l, and computes the weights of each block again (Dao et al. 2022):

    P = exp(E - L),   dV = P^T dY,   dE = P * (dY V^T - delta),  delta_i = dY_i^T Y_i,   dQ = s dE K,   dK = s dE^T Q

Memory O(T (K + V) + T x block) both ways. `weft.parts.kernels` runs torch's compiled kernel instead.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from weft.foundation.errors import WeftError
from weft.foundation.numerics import widen
from weft.parts.attention_context import AttentionContext
from weft.parts.kernels import BLOCK, repeat_heads


def online_softmax_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    context: AttentionContext,
    scale: float | None = None,
    block: int = BLOCK,
) -> Tensor:
    """Y = softmax(s Q K^T + M) V, a block of keys at a time; q [B, H, T, K], k [B, G, S, K], v [B, G, S, V].

    s = 1/sqrt(D_K) where no `scale` is given. A row that may look nowhere gets zeros.
    """
    if context.has_bias or context.has_value_bias:
        raise WeftError(
            f"{type(context.position).__name__} changes scores or values, which is not written down here: "
            "use rotary or no positions, or the blocked kernel"
        )
    s = query.shape[-1] ** -0.5 if scale is None else scale
    key, value = repeat_heads(key, query.shape[1]), repeat_heads(value, query.shape[1])
    return _OnlineSoftmax.apply(query, key, value, context, s, block)  # type: ignore[no-untyped-call]


class _OnlineSoftmax(torch.autograd.Function):
    """The formulas at the head of this file, for all queries at once."""

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, context: AttentionContext, scale: float, block: int
    ) -> Tensor:
        q = scale * widen(query)
        tiny, lowest = torch.finfo(q.dtype).tiny, torch.finfo(q.dtype).min
        m, sums = q.new_full((*q.shape[:3], 1), lowest), q.new_zeros(*q.shape[:3], 1)
        y = q.new_zeros(*q.shape[:3], value.shape[3])
        for k, v, first in _blocks(key, value, block):
            e = _scores(q, k, context, first)
            most = torch.maximum(m, e.amax(-1, keepdim=True))
            p, shrink = torch.exp(e - most), torch.exp(m - most)
            m, sums, y = most, sums * shrink + p.sum(-1, keepdim=True), y * shrink + p @ v
        sums = sums.clamp(min=tiny)  # of a row that may look nowhere
        y = y / sums
        ctx.save_for_backward(query, key, value, y, m + sums.log())
        ctx.call = (context, scale, block)
        return y.to(value.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, y, L = ctx.saved_tensors
        context, scale, block = ctx.call
        q, dy = scale * widen(query), widen(gradient)
        delta = (dy * y).sum(-1, keepdim=True)
        dq, dk, dv = torch.zeros_like(q), torch.zeros_like(widen(key)), torch.zeros_like(widen(value))
        for k, v, first in _blocks(key, value, block):
            p = torch.exp(_scores(q, k, context, first) - L)
            de = p * (dy @ v.transpose(-2, -1) - delta)
            dq += scale * de @ k
            dk[:, :, first : first + block] = de.transpose(-2, -1) @ q
            dv[:, :, first : first + block] = p.transpose(-2, -1) @ dy
        return dq.to(query.dtype), dk.to(key.dtype), dv.to(value.dtype), None, None, None


def _blocks(key: Tensor, value: Tensor, block: int) -> list[tuple[Tensor, Tensor, int]]:
    """(keys, values, index of the first) of each block."""
    keys, values = key.split(block, 2), value.split(block, 2)
    return [(widen(k), widen(v), n * block) for n, (k, v) in enumerate(zip(keys, values, strict=True))]


def _scores(q: Tensor, k: Tensor, context: AttentionContext, first: int) -> Tensor:
    """E + M for one block of keys, [B, H, T, block], -inf where a key is hidden."""
    e = q @ k.transpose(-2, -1)
    if context.form == "everything":
        return e
    visible = context.visible_block(0, q.shape[2], first, first + k.shape[2])
    return e.masked_fill(~visible, float("-inf"))
