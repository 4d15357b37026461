"""Three ways to compute attention, and the choice among them; all give the same numbers for real tokens.

- explicit: E = e(Q, K), A = softmax(E + M), Y = A V with A in memory: any score, the weights can be seen;
- fused: torch's scaled_dot_product_attention, which never stores A (FlashAttention, Dao et al. 2022);
- blocked: a block of queries at a time against only the keys that they may see, forward and backward (each block is
  computed again), so that a window of w keys costs O(N w), and weights, masks and biases exist for a block only.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from weft.foundation.errors import WeftError
from weft.parts.attention_context import AttentionContext, Extent
from weft.parts.scores import Score

Backend = Literal["auto", "explicit", "fused", "blocked"]
BLOCK = 128
DENSE_LIMIT = 1 << 20  # pairs T x S above which a dense mask or bias is computed in blocks


def repeat_heads(x: Tensor, heads: int) -> Tensor:
    """Shared key heads [B, G, S, .] as [B, H, S, .]: each serves H / G query heads."""
    return x if x.shape[1] == heads else x.repeat_interleave(heads // x.shape[1], dim=1)


def attention_weights(
    query: Tensor, key: Tensor, context: AttentionContext, score: Score, extent: Extent | None = None
) -> Tensor:
    """A = softmax(e(Q, K) + bias + M), or as the score weighs, [B, H, T, S]; `extent`: only some queries and keys."""
    scores = score(query, repeat_heads(key, query.shape[1]))
    bias = context.bias(query, extent)
    if bias is not None:
        scores = scores + bias
    return score.weigh(scores, _visible(context, extent))


def explicit(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    context: AttentionContext,
    score: Score,
    dropout: float = 0.0,
    extent: Extent | None = None,
) -> tuple[Tensor, Tensor]:
    """(Y, A): Y = A V with A = softmax(e(Q, K) + M), both kept; q [B, H, T, K], k [B, G, S, K], v [B, G, S, V]."""
    weights = attention_weights(query, key, context, score, extent)
    kept = (F.dropout(weights, dropout) if dropout else weights).to(value.dtype)
    return kept @ repeat_heads(value, query.shape[1]), weights


def fused(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    context: AttentionContext,
    score: Score,
    dropout: float = 0.0,
    extent: Extent | None = None,
) -> Tensor:
    """Y alone, by scaled_dot_product_attention, with the mask in its cheapest form; e = s q'^T k for some q' and s."""
    bias = context.bias(query, extent)
    query, scale = score.as_dot_product(query)
    flag = extent is None and bias is None and context.form == "causal"
    mask = None if flag else _visible(context, extent)
    if bias is not None:
        bias = bias.to(query.dtype)
        mask = bias if mask is None else bias.masked_fill(~mask, float("-inf"))
    return F.scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=mask,
        dropout_p=dropout,
        is_causal=flag and query.shape[2] > 1,
        scale=scale,
        enable_gqa=key.shape[1] != query.shape[1],
    )


def _visible(context: AttentionContext, extent: Extent | None) -> Tensor | None:
    """What is seen, broadcastable to [B, H, T, S]; None where that is everything."""
    if context.form == "everything":
        return None
    return context.visible if extent is None else context.visible_block(*extent)


def blocked(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    context: AttentionContext,
    score: Score,
    dropout: float = 0.0,
    block: int = BLOCK,
) -> Tensor:
    """Y alone, a block of queries at a time against the keys that it may see: memory O(block x S), never T x S."""
    parts = [part for part in (context.position, score) if part is not None]
    parameters = [p for part in parts for p in part.parameters() if p.requires_grad]
    return _Blocked.apply(  # type: ignore[no-untyped-call]
        query, key, value, context, score, dropout, context.extents(block), *parameters
    )


class _Blocked(torch.autograd.Function):
    """Forward keeps nothing but its inputs; backward computes each block again and adds its share in place."""

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        context: AttentionContext,
        score: Score,
        dropout: float,
        extents: list[Extent],
        *parameters: Tensor,
    ) -> Tensor:
        ctx.save_for_backward(query, key, value, *parameters)
        ctx.call = (context, score, dropout, extents)
        ctx.random = _random_state(query.device) if dropout else None
        out = query.new_zeros(*query.shape[:3], value.shape[3])
        for extent in extents:
            q0, q1, k0, k1 = extent
            if k1 > k0:
                q, k, v = query[:, :, q0:q1], key[:, :, k0:k1], value[:, :, k0:k1]
                out[:, :, q0:q1] = _block(q, k, v, context, score, dropout, extent)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, *parameters = ctx.saved_tensors
        context, score, dropout, extents = ctx.call
        grads = [torch.zeros_like(t) for t in (query, key, value, *parameters)]
        if ctx.random is not None:
            after = _random_state(query.device)
            _set_random_state(query.device, ctx.random)
        for extent in extents:
            q0, q1, k0, k1 = extent
            if k1 <= k0:
                continue
            with torch.enable_grad():
                q, k, v = (
                    t.detach().requires_grad_() for t in (query[:, :, q0:q1], key[:, :, k0:k1], value[:, :, k0:k1])
                )
                y = _block(q, k, v, context, score, dropout, extent)
            found = torch.autograd.grad(y, (q, k, v, *parameters), gradient[:, :, q0:q1], allow_unused=True)
            spans = [(q0, q1), (k0, k1), (k0, k1)]
            for total, part, (first, last) in zip(grads, found, spans, strict=False):
                if part is not None:
                    total[:, :, first:last] += part
            for total, part in zip(grads[3:], found[3:], strict=True):
                if part is not None:
                    total += part
        if ctx.random is not None:
            _set_random_state(query.device, after)
        return (*grads[:3], None, None, None, None, *grads[3:])


def _block(
    q: Tensor, k: Tensor, v: Tensor, context: AttentionContext, score: Score, dropout: float, extent: Extent
) -> Tensor:
    if score.fusable == "never":
        return explicit(q, k, v, context, score, dropout, extent)[0]
    return fused(q, k, v, context, score, dropout, extent)


def _random_state(device: torch.device) -> Tensor:
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()


def _set_random_state(device: torch.device, state: Tensor) -> None:
    if device.type == "cuda":
        torch.cuda.set_rng_state(state, device)
    else:
        torch.set_rng_state(state)


def choose_kernel(context: AttentionContext, score: Score, backend: Backend = "auto") -> tuple[Backend, str]:
    """Which of the three runs, and why, in words."""
    T, S = context.queries.length, context.keys.length
    large = T > BLOCK and T * S > DENSE_LIMIT
    if backend == "fused" and score.fusable == "never":
        raise WeftError(
            "this score is not a dot product with a softmax, so the fused kernel cannot run it: "
            "use auto, explicit or blocked"
        )
    if backend != "auto":
        return backend, "asked for"
    if score.fusable == "never":
        reason = "the score is not a dot product of a mapped query and a key, followed by a softmax"
        return ("blocked", f"{reason}, and {T} x {S} pairs are many") if large else ("explicit", reason)
    if context.form != "dense" and not context.has_bias:
        return "fused", f"the mask is {'a flag' if context.form == 'causal' else 'not needed'}"
    if large and _needs_pairs(context):
        return "blocked", f"{T} x {S} pairs are too many for a dense mask or bias"
    return "fused", f"a dense mask or bias of {T} x {S} pairs is small"


def _needs_pairs(context: AttentionContext) -> bool:
    """Whether mask or bias is a table of pairs; padding alone is a row that broadcasts."""
    return context.has_bias or bool(list(context.rule.terms())) or context.queries.documents is not None
