"""Three ways to compute attention, and the choice among them; all give the same numbers for real tokens.

- explicit: E = e(Q, K), A = softmax(E + M), Y = A V with A in memory: any score, the weights can be seen;
- fused: torch's scaled_dot_product_attention, which does not store A (FlashAttention, Dao et al. 2022). Where torch has
  no such kernel, it falls back to one that does: with dropout outside of CUDA, and where a bias learns. Causal texts
  of 129 to 256 tokens go through a native kernel on CPUs with AVX-512 (`parts/native/attention.h`);
- blocked: a block of queries at a time against only the keys that they may see, forward and backward: any score. A
  window of w keys costs O(N w), and weights, masks and biases exist for one block only; backward computes it again.

By themselves, the fused kernel runs where it stores no T x S tensor or a small one, the blocked one where it would be
large, so memory is O(N); the explicit one for a few pairs under a score that is no dot product.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from weft.foundation.errors import WeftError
from weft.parts import native
from weft.parts.attention_context import AttentionContext, Extent
from weft.parts.scores import Score

Backend = Literal["auto", "explicit", "fused", "blocked"]
BLOCK = 128
DENSE_LIMIT = 1 << 20  # pairs T x S above which a dense mask or bias is computed in blocks
STORED_LIMIT = 1 << 24  # weights B x H x T x S above which they are computed in blocks instead of stored


def repeat_heads(x: Tensor, heads: int) -> Tensor:
    """Shared key heads [B, G, S, .] as [B, H, S, .]: each serves H / G query heads."""
    return x if x.shape[1] == heads else x.repeat_interleave(heads // x.shape[1], dim=1)


def attention_weights(
    query: Tensor, key: Tensor, context: AttentionContext, score: Score, extent: Extent | None = None
) -> Tensor:
    """A = softmax(e(Q, K) + bias + M), or as the score weighs, [B, H, T, S]; `extent`: only some queries and keys."""
    scores = score(query, repeat_heads(key, query.shape[1]))
    bias = context.bias(query, score, extent)
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
    """(Y, A): Y = A V with A = softmax(e(Q, K) + M), both kept; q [B, H, T, K], k [B, G, S, K], v [B, G, S, V].

    `extent`: these are some queries and keys only. A is given as it is before dropout.
    """
    weights = attention_weights(query, key, context, score, extent)
    kept, share = (weights * kept_weights(weights, dropout), kept_share(dropout)) if dropout else (weights, 1.0)
    kept = kept.to(value.dtype)
    y = kept @ repeat_heads(value, query.shape[1])
    added = context.value_bias(kept, extent)
    y = y if added is None else y + added
    return y if share == 1.0 else y / share, weights


def kept_share(dropout: float) -> float:
    """1 - p, with p in steps of 2^-16."""
    return 1 - min(round(dropout * 2**16), 2**16 - 1) / 2**16


def kept_weights(weights: Tensor, dropout: float) -> Tensor:
    """Which weights dropout keeps, each with probability `kept_share`, boolean.

    On a CPU four of them come from one random number: torch's own dropout takes ten times as long there.
    """
    if weights.device.type != "cpu":
        return torch.rand(weights.shape, device=weights.device) < kept_share(dropout)
    count = weights.numel()
    drawn = torch.empty((count + 3) // 4, dtype=torch.int64).random_(-(2**63), None)
    least = round(2**15 - 2**16 * kept_share(dropout))
    return (drawn.view(torch.int16)[:count] >= least).view(weights.shape)


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
    bias = context.bias(query, score, extent)
    query, scale = score.as_dot_product(query)
    flag = extent is None and bias is None and context.form == "causal"
    mask = None if flag else _visible(context, extent)
    if bias is not None:
        bias = bias.to(query.dtype)
        mask = bias if mask is None else bias.masked_fill(~mask, float("-inf"))
    if flag and not dropout and native.suits_attention(query, key, value):
        return native.attention(query, key, value, scale)
    V = value.shape[-1]
    if query.shape[2] > 1:
        query, key, value = _equal_widths(query, key, value)
    y = F.scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=mask,
        dropout_p=dropout,
        is_causal=flag and query.shape[2] > 1,
        scale=scale,
        enable_gqa=key.shape[1] != query.shape[1],
    )
    return y if y.shape[-1] == V else y[..., :V]


def _equal_widths(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Zeros behind queries and keys, or behind values: they change no product, and flash kernels need D_K = D_V.

    With one query A is a row, and a copy of all keys or values would cost more.
    """
    more = value.shape[-1] - key.shape[-1]
    if more > 0:
        return F.pad(query, (0, more)), F.pad(key, (0, more)), value
    return query, key, F.pad(value, (0, -more)) if more < 0 else value


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
    if _fusable(context, score) and not (dropout and q.device.type != "cuda"):
        return fused(q, k, v, context, score, dropout, extent)
    return explicit(q, k, v, context, score, dropout, extent)[0]


def _random_state(device: torch.device) -> Tensor:
    if device.type == "cuda":
        return torch.cuda.get_rng_state(device)
    return torch.mps.get_rng_state() if device.type == "mps" else torch.get_rng_state()


def _set_random_state(device: torch.device, state: Tensor) -> None:
    if device.type == "cuda":
        torch.cuda.set_rng_state(state, device)
    elif device.type == "mps":
        torch.mps.set_rng_state(state)
    else:
        torch.set_rng_state(state)


class KernelChoice(NamedTuple):
    """Which of the three runs, why, in words, and whether the weights A of all pairs are in memory meanwhile."""

    kernel: Backend
    reason: str
    stores_weights: bool


def choose_kernel(
    context: AttentionContext, score: Score, backend: Backend = "auto", dropout: float = 0.0, maps: int = 1
) -> KernelChoice:
    """The kernel for this call; `maps`: how many T x S maps A has, B x H."""
    T, S = context.queries.length, context.keys.length
    if backend == "fused" and not _fusable(context, score):
        raise WeftError(_not_fusable(context) + ", so the fused kernel cannot run it: use auto, explicit or blocked")
    stored = _torch_stores(context, dropout)
    if backend != "auto":
        return KernelChoice(backend, "asked for", backend == "explicit" or (backend == "fused" and bool(stored)))
    many = T > BLOCK and (T * S > DENSE_LIMIT or maps * T * S > STORED_LIMIT)
    if not _fusable(context, score):
        if many:
            return KernelChoice("blocked", f"{_not_fusable(context)}, and {T} x {S} pairs are many", False)
        return KernelChoice("explicit", _not_fusable(context), True)
    if stored and many:
        return KernelChoice("blocked", f"{stored}, and {T} x {S} pairs are many", False)
    reason, dense = _fused_reason(context)
    if dense and T > BLOCK and T * S > DENSE_LIMIT:
        return KernelChoice("blocked", f"{T} x {S} pairs are too many for a dense mask or bias", False)
    return KernelChoice("fused", f"{reason}; {stored}, which is small" if stored else reason, bool(stored))


def _fusable(context: AttentionContext, score: Score) -> bool:
    return score.fusable != "never" and not context.has_value_bias


def _not_fusable(context: AttentionContext) -> str:
    if context.has_value_bias:
        return "the position adds to values, which takes the weights"
    return "this score is not a dot product with a softmax"


def _torch_stores(context: AttentionContext, dropout: float) -> str:
    """Why torch's fused kernel would store A, in words; nothing where it does not."""
    if dropout and context.queries.device.type != "cuda":
        return "with dropout torch stores A"
    # Relative vectors that are frozen still send gradients to the query.
    learned = context.position is not None and context.has_bias and any(True for _ in context.position.parameters())
    return "to learn a bias torch stores A" if learned and torch.is_grad_enabled() else ""


def _fused_reason(context: AttentionContext) -> tuple[str, bool]:
    """What the fused kernel is given, in words, and whether that is a table of pairs."""
    if context.form != "dense" and not context.has_bias:
        return f"the mask is {'a flag' if context.form == 'causal' else 'not needed'}", False
    if not context.has_bias and not list(context.rule.terms()) and context.queries.documents is None:
        return "padding is one row of keys per text", False
    return f"a dense mask or bias of {context.queries.length} x {context.keys.length} pairs is small", True
