"""Attention records of other libraries: torch's scaled_dot_product_attention and nn.MultiheadAttention."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weft.foundation.lazy import lazy
from weft.foundation.numerics import widen
from weft.inspection.recording.attention_records import AttentionRecord, grows


@dataclass(eq=False)
class KeyValueStore:
    """Keys and values [B, G, S, .] of the newest step of a generation; earlier steps had the first of them."""

    key: Tensor
    value: Tensor


@dataclass(eq=False)
class KernelAttentionRecord(AttentionRecord):
    """Of scaled_dot_product_attention: queries [B, H, T, K], the first S keys and values, mask, flag and scale."""

    query: Tensor
    store: KeyValueStore
    S: int
    mask: Tensor | None = None
    causal: bool = False
    scale: float | None = None

    @staticmethod
    def of(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> KernelAttentionRecord | None:
        """From torch's arguments; [B, T, K] counts as one head. None for nested tensors and other shapes."""
        del dropout_p, enable_gqa
        if query.is_nested or query.dim() not in (3, 4):
            return None
        q, k, v = (x.detach()[:, None] if x.dim() == 3 else x.detach() for x in (query, key, value))
        mask = None if attn_mask is None else attn_mask.detach()
        if mask is not None and mask.dim() == 3 and query.dim() == 3:
            mask = mask[:, None]
        return KernelAttentionRecord(q, KeyValueStore(k, v), k.shape[2], mask, is_causal, scale)

    @property
    def key(self) -> Tensor:
        """[B, G, S, K]."""
        return self.store.key[:, :, : self.S]

    @property
    def value(self) -> Tensor:
        """[B, G, S, V]."""
        return self.store.value[:, :, : self.S]

    @property
    def sizes(self) -> tuple[int, int, int, int]:  # type: ignore[override]
        B, H, T, _ = self.query.shape
        return B, H, T, self.S

    def continues(self, before: AttentionRecord) -> bool:
        """Whether its keys are those of `before` and new ones; if so, they are stored once."""
        if not isinstance(before, KernelAttentionRecord) or not grows(before, self):
            return False
        old, new = before.key[:, :, before.S - 1], self.key[:, :, before.S - 1]
        if old.shape != new.shape or not torch.equal(old, new):
            return False
        before.store.key, before.store.value = self.store.key, self.store.value
        self.store = before.store
        return True

    @property
    def device(self) -> torch.device:
        return self.query.device

    @torch.no_grad()
    def scores(self, b: int, heads: Tensor, rows: Tensor) -> Tensor:
        """q^T k scale + mask; the causal flag is aligned to the upper left corner, as in torch."""
        share = self.query.shape[1] // self.key.shape[1]
        query, key = widen(self.query[b, heads][:, rows]), widen(self.key[b, heads // share])
        scale = 1 / math.sqrt(query.shape[-1]) if self.scale is None else self.scale
        scores = (query * scale) @ key.transpose(-2, -1)
        if self.causal:
            ahead = torch.arange(self.key.shape[2], device=rows.device) > rows[:, None]
            scores = scores.masked_fill(ahead, float("-inf"))
        if self.mask is not None:
            mask = self._mask(b, heads, rows)
            scores = scores.masked_fill(~mask, float("-inf")) if mask.dtype == torch.bool else scores + mask
        return scores

    def _mask(self, b: int, heads: Tensor, rows: Tensor) -> Tensor:
        assert self.mask is not None
        mask = self.mask
        while mask.dim() < 4:
            mask = mask[None]
        mask = mask[b if mask.shape[0] > 1 else 0]
        mask = mask[heads] if mask.shape[0] > 1 else mask
        return mask[:, rows] if mask.shape[1] > 1 else mask

    def vectors(self, b: int) -> tuple[Tensor, Tensor, Tensor]:
        share = self.query.shape[1] // self.key.shape[1]
        return self.query[b], self.key[b].repeat_interleave(share, 0), self.value[b].repeat_interleave(share, 0)


class DeferredAttentionRecord(AttentionRecord):
    """A record that is made at its first use, from inputs that are kept; `count` is B."""

    def __init__(self, count: int, make: Callable[[], KernelAttentionRecord]) -> None:
        self._count, self._make = count, make

    @property
    def rows(self) -> int:
        return self._count

    @lazy
    def made(self) -> KernelAttentionRecord:
        return self._make()

    @property
    def sizes(self) -> tuple[int, int, int, int]:  # type: ignore[override]
        return self.made.sizes

    @property
    def device(self) -> torch.device:
        return self.made.device

    def scores(self, b: int, heads: Tensor, rows: Tensor) -> Tensor:
        return self.made.scores(b, heads, rows)

    def vectors(self, b: int) -> tuple[Tensor, Tensor, Tensor]:
        return self.made.vectors(b)


def multihead_record(
    part: nn.MultiheadAttention,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> DeferredAttentionRecord:
    """Of nn.MultiheadAttention, whose fast path hides queries and keys: they are projected again when asked for."""
    del need_weights, average_attn_weights
    q, k, v = (x.detach() for x in (query, key, value))
    mask = attn_mask
    if mask is None and is_causal:
        mask = nn.Transformer.generate_square_subsequent_mask(query.shape[1 if part.batch_first else 0]).isneginf()
    rows = 1 if query.dim() == 2 else query.size(0 if part.batch_first else 1)
    return DeferredAttentionRecord(rows, lambda: _project(part, q, k, v, _merged(part, mask, key_padding_mask)))


@torch.no_grad()
def _project(
    part: nn.MultiheadAttention, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None
) -> KernelAttentionRecord:
    if query.is_nested:
        lengths = torch.tensor([len(row) for row in query.unbind()], device=query.device)
        query = key = value = query.to_padded_tensor(0.0)
        hidden = torch.arange(query.shape[1], device=query.device) >= lengths[:, None]
        mask = _merged(part, None, hidden)
    elif query.dim() == 2:
        query, key, value = query[None], key[None], value[None]
    elif not part.batch_first:
        query, key, value = (x.transpose(0, 1) for x in (query, key, value))
    weights: Any = (part.q_proj_weight, part.k_proj_weight, part.v_proj_weight)
    if part.in_proj_weight is not None:
        weights = part.in_proj_weight.chunk(3)
    biases: Any = (None, None, None) if part.in_proj_bias is None else part.in_proj_bias.chunk(3)
    mapped = [F.linear(x, w, c) for x, w, c in zip((query, key, value), weights, biases, strict=True)]
    q, k, v = (x.unflatten(-1, (part.num_heads, -1)).transpose(1, 2) for x in mapped)
    for extra in (part.bias_k, part.bias_v):
        if extra is not None:
            row = extra.reshape(1, part.num_heads, 1, -1).expand(len(q), -1, -1, -1)
            k, v = (torch.cat((k, row), 2), v) if extra is part.bias_k else (k, torch.cat((v, row), 2))
    if part.add_zero_attn:
        k, v = (torch.cat((x, torch.zeros_like(x[:, :, :1])), 2) for x in (k, v))
    if mask is not None and mask.shape[-1] < k.shape[2]:
        mask = F.pad(mask, (0, k.shape[2] - mask.shape[-1]))
    return KernelAttentionRecord(q, KeyValueStore(k, v), k.shape[2], mask)


def _merged(part: nn.MultiheadAttention, mask: Tensor | None, padding: Tensor | None) -> Tensor | None:
    """torch's two masks (True or -inf = hidden) as one that is added, broadcastable to [B, H, T, S]."""
    total: Tensor | None = None
    if mask is not None:
        total = _additive(mask)
        total = total.unflatten(0, (-1, part.num_heads)) if total.dim() == 3 else total[None, None]
    if padding is not None:
        rows = _additive(padding)
        rows = rows[None] if rows.dim() == 1 else rows
        total = rows[:, None, None] if total is None else total + rows[:, None, None]
    return total


def _additive(mask: Tensor) -> Tensor:
    if mask.dtype != torch.bool:
        return mask.detach()
    return torch.zeros(mask.shape, device=mask.device).masked_fill(mask, float("-inf"))
