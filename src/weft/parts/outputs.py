"""Outputs: what turns the last hidden states [B, T, D] into an answer."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributions import Distribution, Normal, StudentT

from weft.foundation.errors import ShapeError
from weft.foundation.numerics import widen
from weft.parts.embeddings import TokenEmbedding
from weft.parts.feedforward import activation
from weft.parts.linear import Linear, linear
from weft.parts.norms import Norm
from weft.parts.token_positions import TokenPositions, first_real, last_real

Pool = Literal["first", "mean", "last"]
DistributionName = Literal["point", "gaussian", "student"]

# Above so many logits losses make them chunk by chunk; below, one product is faster.
LOGITS_AT_ONCE = 16_000_000


SharedLoss = Callable[[Tensor, Tensor, float], Tensor]  # of hidden [N, D], labels [N] and the smoothing


class LanguageHead(nn.Module):
    """Logits over the vocabulary: hidden W^T + b, W [C, D]."""

    shared_loss: SharedLoss | None = None  # the loss where several processes hold some rows of W each

    def __init__(self, width: int, vocabulary: int, bias: bool = False) -> None:
        super().__init__()
        self.width, self.vocabulary = width, vocabulary
        self.linear = Linear(width, vocabulary, bias=bias)

    def weight(self, embedding: TokenEmbedding | None = None) -> Tensor:
        """W [C, D], for a loss in chunks."""
        return self.linear.weight

    @property
    def bias(self) -> Tensor | None:
        """b [C], for a loss in chunks."""
        return self.linear.bias

    def forward(self, hidden: Tensor, embedding: TokenEmbedding | None = None) -> Tensor:
        """[..., D] -> [..., C]; the embedding is not needed."""
        return self.linear(hidden)


class TiedHead(nn.Module):
    """Logits by the embedding's own matrix, transposed (Press and Wolf 2017); `scale` multiplies (T5: D^-1/2).

    It is given the embedding with each call and holds none, so the shared weight stands once in the state dict; its
    own is the bias b [C] alone, where there is one (Marian).
    """

    shared_loss: SharedLoss | None = None  # the loss where several processes hold some rows of W each

    def __init__(self, width: int, vocabulary: int, scale: float = 1.0, bias: bool = False) -> None:
        super().__init__()
        self.width, self.vocabulary, self.scale = width, vocabulary, scale
        self.bias = nn.Parameter(torch.zeros(vocabulary)) if bias else None

    def weight(self, embedding: TokenEmbedding) -> Tensor:
        """W [C, D], for a loss in chunks."""
        return embedding.weight if self.scale == 1.0 else embedding.weight * self.scale

    def forward(self, hidden: Tensor, embedding: TokenEmbedding) -> Tensor:
        """[..., D] -> [..., C]."""
        hidden = hidden if self.scale == 1.0 else hidden * self.scale
        return linear(hidden, embedding.weight, self.bias)


class CappedHead(nn.Module):
    """Another head's logits within +-cap: cap * tanh(logits / cap) (Gemma 2)."""

    def __init__(self, head: nn.Module, cap: float, vocabulary: int) -> None:
        super().__init__()
        self.head, self.cap, self.vocabulary = head, cap, vocabulary

    def forward(self, hidden: Tensor, embedding: TokenEmbedding | None = None) -> Tensor:
        """[..., D] -> [..., C]."""
        return self.cap * (self.head(hidden, embedding=embedding) / self.cap).tanh()


class MutedHead(nn.Module):
    """Another head's logits, with -inf for `tokens` that are never to be written."""

    def __init__(self, head: nn.Module, tokens: tuple[int, ...]) -> None:
        super().__init__()
        self.head, self.tokens = head, tokens

    def forward(self, hidden: Tensor, embedding: TokenEmbedding) -> Tensor:
        """[..., D] -> [..., C]."""
        muted = torch.tensor(self.tokens, device=hidden.device)
        return self.head(hidden, embedding=embedding).index_fill(-1, muted, float("-inf"))


def pool_tokens(hidden: Tensor, token_positions: TokenPositions, pool: Pool) -> Tensor:
    """[B, T, D] -> [B, D]: the first (class) token, the mean over real tokens, or the last real one."""
    if pool == "mean":
        if token_positions.real is None:
            return hidden.mean(1)
        weight = token_positions.real.to(hidden.dtype)[:, :, None]
        return (hidden * weight).sum(1) / weight.sum(1).clamp(min=1)
    index = (first_real(token_positions) if pool == "first" else last_real(token_positions)).expand(hidden.shape[0])
    return hidden[torch.arange(hidden.shape[0], device=hidden.device), index]


def pool_at_end(hidden: Tensor, tokens: Tensor, token_positions: TokenPositions, end: int | None) -> Tensor:
    """[B, T, D] -> [B, D]: the state of each text's first token `end`; without one, of its token of the highest id.

    Under a causal mask it is the first state that has seen the whole text (Radford et al. 2021).
    """
    real = tokens if token_positions.real is None else tokens.masked_fill(~token_positions.real, -1)
    if end is not None:
        ends = real == end
        if tokens.device.type == "cpu" and not torch.compiler.is_compiling() and not bool(ends.any(1).all()):
            row = int(ends.any(1).long().argmin())
            raise ShapeError(f"text {row} has no end token {end}, where its vector is read: put it after the text")
        real = ends.long()
    return hidden[torch.arange(hidden.shape[0], device=hidden.device), real.argmax(1)]


class ProjectionHead(nn.Module):
    """A vector of length 1 in a space that several models share: v = W h / |W h|, W [P, D] (Radford et al. 2021)."""

    def __init__(self, width: int, shared: int) -> None:
        super().__init__()
        self.linear = Linear(width, shared, bias=False)

    def forward(self, pooled: Tensor) -> Tensor:
        """[..., D] -> [..., P]."""
        return F.normalize(self.linear(pooled), dim=-1)


class SimilarityHead(nn.Module):
    """Which texts belong to an image: logits = exp(s) u v^T of unit vectors u and v, with a learned number s.

    It begins at exp(s) = 1 / 0.07 (Radford et al. 2021).
    """

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(math.log(1 / 0.07)))

    def forward(self, images: Tensor, texts: Tensor) -> Tensor:
        """[M, P], [N, P] -> [M, N]."""
        return self.scale.exp() * images @ texts.T


class PooledHead(nn.Module):
    """One answer per sequence: pool, then an optional hidden layer (a small MLP, BERT's pooler), then C classes.

    Without `classes` the pooled vector itself is the answer.
    """

    def __init__(
        self,
        width: int,
        classes: int | None,
        pool: Pool = "first",
        hidden: int | None = None,
        activation_name: str = "tanh",
    ) -> None:
        super().__init__()
        self.pool: Pool = pool
        self.hidden = Linear(width, hidden) if hidden is not None else None
        self.activation = activation(activation_name)
        self.linear = Linear(hidden or width, classes) if classes is not None else None

    def forward(self, hidden: Tensor, token_positions: TokenPositions, embedding: nn.Module | None = None) -> Tensor:
        """[B, T, D] -> [B, C], or [B, D or hidden] without classes; the embedding is not needed."""
        x = pool_tokens(hidden, token_positions, self.pool)
        if self.hidden is not None:
            x = self.activation(self.hidden(x))
        return x if self.linear is None else self.linear(x)


class DistilledHead(nn.Module):
    """The mean of two answers, from the class token and from the distillation token after it (Touvron et al. 2021)."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.linear = Linear(width, classes)
        self.distilled = Linear(width, classes)

    def forward(self, hidden: Tensor, token_positions: TokenPositions) -> Tensor:
        """[B, T, D] -> [B, C]."""
        return (self.linear(hidden[:, 0]) + self.distilled(hidden[:, 1])) / 2


class TokenHead(nn.Module):
    """One answer per token: [B, T, D] -> [B, T, C]."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.linear = Linear(width, classes)

    def forward(self, hidden: Tensor, token_positions: TokenPositions, embedding: nn.Module | None = None) -> Tensor:
        """[B, T, D] -> [B, T, C]; the embedding is not needed."""
        return self.linear(hidden)


class MaskedLanguageHead(nn.Module):
    """Which token each token is, for masked ones that are to be filled in (Devlin et al. 2019): a hidden layer and a
    norm, then logits by the embedding's own matrix E [C, D] with a bias of their own.

    logits = LN(f(h W + b)) E^T + c
    """

    def __init__(self, width: int, vocabulary: int, norm: Norm, activation_name: str = "gelu") -> None:
        super().__init__()
        self.transform = Linear(width, width)
        self.activation = activation(activation_name)
        self.norm = norm
        self.tied = TiedHead(width, vocabulary, bias=True)

    def forward(self, hidden: Tensor, token_positions: TokenPositions, embedding: TokenEmbedding) -> Tensor:
        """[B, T, D] -> [B, T, C]."""
        return self.tied(self.norm(self.activation(self.transform(hidden))), embedding)


PARAMETERS: dict[str, int] = {"point": 1, "gaussian": 2, "student": 3}


class ForecastHead(nn.Module):
    """Numbers out: each of n values as a point, a Gaussian (mean, scale) or a Student-t (mean, scale, freedom)."""

    def __init__(self, width: int, values: int, distribution_name: DistributionName = "student") -> None:
        super().__init__()
        self.values, self.distribution_name = values, distribution_name
        self.linear = Linear(width, values * PARAMETERS[distribution_name])

    def forward(self, hidden: Tensor) -> Tensor:
        """[..., D] -> raw parameters [..., n, 1 to 3]."""
        return self.linear(hidden).unflatten(-1, (self.values, -1))

    def point(self, raw: Tensor) -> Tensor:
        """The point forecast: [..., n, P] -> [..., n]."""
        return raw[..., 0]

    def distribution(self, raw: Tensor) -> Distribution:
        """The distribution over values [..., n]; a point forecast is a Gaussian of unit scale. In float32 or wider."""
        raw = widen(raw)
        if self.distribution_name == "point":
            return Normal(raw[..., 0], torch.ones_like(raw[..., 0]))
        scale = F.softplus(raw[..., 1]) + 1e-4
        if self.distribution_name == "gaussian":
            return Normal(raw[..., 0], scale)
        return StudentT(2.0 + F.softplus(raw[..., 2]), raw[..., 0], scale)
