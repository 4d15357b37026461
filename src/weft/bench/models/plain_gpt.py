"""A plain GPT in the manner of nanoGPT: torch's own layers and nothing else, written from the papers.

Radford et al. 2019 (GPT-2): token and position tables, pre-norm blocks x + Attention(Norm(x)), x + MLP(Norm(x)) with a
tanh GELU, a last norm, and a head that shares the token table. B batch, T length, D width, H heads, C vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class PlainBlock(nn.Module):
    """Attention and a feed-forward of four times the width, each behind a norm and beside a residual."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.mixer_norm, self.feedforward_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.output = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, D] -> [B, T, D]."""
        x = x + self._attend(self.mixer_norm(x))
        return x + self.down(F.gelu(self.up(self.feedforward_norm(x)), approximate="tanh"))

    def _attend(self, x: Tensor) -> Tensor:
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, dim=-1))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.output(mixed.transpose(1, 2).flatten(-2))


class PlainGPT(nn.Module):
    """tokens [B, T] and the tokens that follow them -> mean cross-entropy."""

    def __init__(self, layers: int, width: int, heads: int, vocabulary: int, length: int) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(PlainBlock(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)

    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.norm(x), self.tokens.weight)
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten())

    @torch.no_grad()
    def copy_weights(self, model: Any) -> PlainGPT:
        """Take over the weights of Weft's GPT-2 of the same shape."""
        self.tokens.weight.copy_(model.embedding.weight)
        self.positions.weight.copy_(model.input.position.table[: self.positions.num_embeddings])
        _copy(self.norm, model.stack.norm)
        for own, theirs in zip(self.blocks, model.stack.blocks, strict=True):
            pairs = {
                "mixer_norm": theirs.mixer_norm, "feedforward_norm": theirs.feedforward_norm,
                "qkv": theirs.mixer.qkv, "output": theirs.mixer.output,
                "up": theirs.feedforward.up, "down": theirs.feedforward.down,
            }  # fmt: skip
            for name, part in pairs.items():
                _copy(getattr(own, name), part)
        return self


def _copy(own: Any, part: Any) -> None:
    """The weight and bias of a linear map or a norm, as Weft names them."""
    weight, bias = (part.gamma, part.beta) if hasattr(part, "gamma") else (part.weight, part.bias)
    own.weight.copy_(weight)
    own.bias.copy_(bias)
