"""Attention records of linear attention, which never computes its weights A_ij = phi(q_i).phi(k_j) / sum_j of it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from weft.inspection.recording.attention_records import AttentionRecord, one_row, some
from weft.parts.attention_context import AttentionContext
from weft.parts.linear_attention import LinearAttention, divide
from weft.parts.masks import Causal, Everything, visible_pairs


@dataclass(eq=False)
class LinearAttentionRecord(AttentionRecord):
    """Of one linear attention: its input is kept and projected again when a map is asked for.

    With the identity for phi nothing is normalized, so rows need not sum to one. `scores` are phi(q_i).phi(k_j).
    """

    part: LinearAttention
    x: Tensor
    context: AttentionContext

    @property
    def sizes(self) -> tuple[int, int, int, int]:  # type: ignore[override]
        """(B, H, T, T)."""
        B, T, _ = self.x.shape
        return B, self.part.heads, T, T

    @property
    def device(self) -> torch.device:
        return self.x.device

    @torch.no_grad()
    def vectors(self, b: int) -> tuple[Tensor, Tensor, Tensor]:
        """phi(q), phi(k), v."""
        mapped = self.part.qkv(self.x[b : b + 1])
        q, k, v = (t.unflatten(-1, (self.part.heads, -1)).transpose(1, 2)[0] for t in mapped.chunk(3, dim=-1))
        return self.part.feature(q), self.part.feature(k), v

    @torch.no_grad()
    def scores(self, b: int, heads: Tensor, rows: Tensor) -> Tensor:
        """phi(q_i).phi(k_j), -inf where a key is hidden."""
        query, key, _ = self.vectors(b)
        products = query[heads][:, rows] @ key[heads].transpose(-2, -1)
        mask = Causal() if self.part.causal else Everything()
        visible = one_row(visible_pairs(mask, some(self.context.queries, rows), self.context.queries), b)
        return products.masked_fill(~visible, float("-inf"))

    def weights(self, b: int, heads: Tensor, rows: Tensor) -> Tensor:
        products = self.scores(b, heads, rows)
        products = products.masked_fill(products.isneginf(), 0.0)
        return divide(products, products.sum(-1)) if self.part.normalize else products
