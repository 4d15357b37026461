"""Modules as users write them, for tests: none knows anything of Weft."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class TinyGPT(nn.Module):
    """One block, written by hand."""

    def __init__(self, vocabulary: int, length: int, width: int = 12) -> None:
        super().__init__()
        self.token, self.place = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.project, self.mlp = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.dropout, self.head = nn.Dropout(0.1), nn.Linear(width, vocabulary)

    def attend(self, x: Tensor) -> Tensor:
        query, key, value = (t.unflatten(-1, (3, -1)).transpose(1, 2) for t in self.project(x).chunk(3, -1))
        return F.scaled_dot_product_attention(query, key, value, is_causal=True).transpose(1, 2).flatten(2)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.token(tokens) + self.place(torch.arange(tokens.shape[1]))
        x = x + self.dropout(self.attend(x))
        return self.head(x + self.mlp(x).relu())


class LeakyGPT(TinyGPT):
    """Each token sees the mean of all."""

    def forward(self, tokens: Tensor) -> Tensor:
        found = super().forward(tokens)
        return found + 0.01 * found.mean(1, keepdim=True)


class TiedLSTM(nn.Module):
    """Tied weights, and logits of the last token alone unless targets are given, as some write it."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.embed, self.lstm = nn.Embedding(vocabulary, 11), nn.LSTM(11, 11, batch_first=True)
        self.head = nn.Linear(11, vocabulary)
        self.head.weight = self.embed.weight

    def forward(self, idx: Tensor, targets: Tensor | None = None) -> tuple[Tensor, None]:
        found = self.lstm(self.embed(idx))[0]
        return self.head(found if targets is not None else found[:, [-1]]), None


class MeanPool(nn.Module):
    """Averages over all tokens, so that padding would count; it takes no mask."""

    def __init__(self, vocabulary: int, classes: int) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(vocabulary, 7), nn.Linear(7, classes)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.embed(tokens).mean(1))


class MaskedPool(MeanPool):
    """The same, told of padding: True hides."""

    def forward(self, tokens: Tensor, key_padding_mask: Tensor | None = None) -> dict[str, Tensor]:  # type: ignore[override]
        real = torch.ones(tokens.shape) if key_padding_mask is None else (~key_padding_mask).to(self.head.weight.dtype)
        mean = (self.embed(tokens) * real[..., None]).sum(1) / real.sum(1, keepdim=True)
        return {"logits": self.head(mean)}


class SmallViT(nn.Module):
    """A class token before patches."""

    def __init__(self, classes: int, channels: int, size: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(channels, 12, size // 3, size // 3)
        self.first = nn.Parameter(torch.zeros(1, 1, 12))
        self.norm, self.attention = nn.LayerNorm(12), nn.MultiheadAttention(12, 2, batch_first=True)
        self.head = nn.Linear(12, classes)

    def forward(self, images: Tensor) -> Tensor:
        x = self.patches(images)[..., :3, :3].flatten(2).transpose(1, 2)
        x = torch.cat((self.first.expand(len(x), -1, -1), x), 1)
        y = self.norm(x)
        return self.head((x + self.attention(y, y, y, need_weights=False)[0])[:, 0])


class NormedConv(nn.Sequential):
    """A batch norm, which looks at the whole batch in training."""

    def __init__(self, classes: int, channels: int) -> None:
        super().__init__(
            nn.Conv2d(channels, 5, 3, 2),
            nn.BatchNorm2d(5),
            nn.AdaptiveAvgPool2d(2),
            nn.Flatten(),
            nn.Linear(20, classes),
        )


class MeanGRU(nn.Module):
    """Vectors in, one answer."""

    def __init__(self, classes: int, channels: int) -> None:
        super().__init__()
        self.gru, self.head = nn.GRU(channels, 7, batch_first=True), nn.Linear(7, classes)

    def forward(self, vectors: Tensor) -> Tensor:
        return self.head(self.gru(vectors)[0].mean(1))


def wide(vocabulary: int, length: int) -> TinyGPT:
    """The same class in another size."""
    return TinyGPT(vocabulary, length, width=15)


def needs_depth(vocabulary: int, depth: int) -> TinyGPT:
    """A factory that Weft cannot call: it knows no depth."""
    return TinyGPT(vocabulary, depth)
