"""Scores e(q, k): how well a query fits a key, before mask and softmax.

Shapes: q [B, H, T, D_Q], k [B, H, S, D_K] -> e [B, H, T, S]. A score that is a dot product after a map of the query
says so with `as_dot_product`, and then runs in the fused kernel; the others are computed explicitly.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn

from weft.foundation.errors import ShapeError, WeftError
from weft.parts.parameters import normal_parameter


def dot(query: Tensor, key: Tensor) -> Tensor:
    """e_ij = q_i^T k_j (Luong et al. 2015)."""
    return query @ key.transpose(-2, -1)


def scaled_dot(query: Tensor, key: Tensor) -> Tensor:
    """e_ij = q_i^T k_j / sqrt(D_K): unit variance for unit normal q, k, softmax starts soft (Vaswani et al. 2017)."""
    return dot(query * query.shape[-1] ** -0.5, key)


def bilinear(query: Tensor, key: Tensor, W: Tensor) -> Tensor:
    """e_ij = q_i^T W k_j, W [H, D_Q, D_K] or [D_Q, D_K]; D_Q and D_K may differ (Luong's "general")."""
    return dot(_map_heads(query, W), key)


def _map_heads(x: Tensor, W: Tensor) -> Tensor:
    """x_h W_h, [B, H, T, D] and [H, D, F] or [D, F] -> [B, H, T, F].

    Broadcasting would copy W, and its gradient, once for each row of the batch.
    """
    if W.dim() == 2 or W.shape[0] == 1:
        return x @ W.reshape(W.shape[-2:])
    return torch.einsum("...htd,hdf->...htf", x, W)


def additive(query: Tensor, key: Tensor, W: Tensor, U: Tensor, v: Tensor) -> Tensor:
    """e_ij = v^T tanh(W q_i + U k_j), W [H, F, D_Q], U [H, F, D_K], v [H, F] (Bahdanau et al. 2015)."""
    return _additive_prepared(query, _map_heads(key, U.transpose(-2, -1)), W, v)


def _additive_prepared(query: Tensor, k_BHSF: Tensor, W: Tensor, v: Tensor) -> Tensor:
    q_BHTF = _map_heads(query, W.transpose(-2, -1))
    hidden = torch.tanh(q_BHTF[..., :, None, :] + k_BHSF[..., None, :, :])
    return (hidden @ v[0, :, None]).squeeze(-1) if v.shape[0] == 1 else torch.einsum("...htsf,hf->...hts", hidden, v)


def concatenated(query: Tensor, key: Tensor, w: Tensor) -> Tensor:
    """e_ij = w^T [q_i; k_j], w [H, D_Q + D_K]: a linear layer on the concatenation.

    It splits into w_q^T q_i + w_k^T k_j, so no pair is ever concatenated; and since softmax over j ignores what is
    constant in j, the weights do not depend on the query at all: the classic reason to put a tanh in between.
    """
    w_q, w_k = w.split([query.shape[-1], key.shape[-1]], dim=-1)
    q_BHT = (query @ w_q[:, :, None]).squeeze(-1)
    k_BHS = (key @ w_k[:, :, None]).squeeze(-1)
    return q_BHT[..., :, None] + k_BHS[..., None, :]


class Score(nn.Module):
    """A score with its weights, one set a head: `score(q, k)` gives e [B, H, T, S].

    `fusable`: whether e = s q'^T k, which the fused kernel can run, with q' the query itself or a map of it.
    """

    fusable: Literal["plain", "mapped", "never"] = "never"

    def as_dot_product(self, query: Tensor) -> tuple[Tensor, float]:
        """(q', s) with e = s q'^T k, for the fused kernel."""
        raise WeftError(f"{type(self).__name__} is no dot product: compute it explicitly")

    def prepare(self, key: Tensor) -> Tensor:
        """What can be computed from the keys alone, once for all queries that come one by one."""
        return key

    def compare(self, query: Tensor, prepared: Tensor) -> Tensor:
        """e(q, k) for prepared keys."""
        return self(query, prepared)


class Dot(Score):
    """q^T k, see `dot`."""

    fusable = "plain"

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        """[B, H, T, K], [B, H, S, K] -> [B, H, T, S]."""
        _expect_equal(query, key)
        return dot(query, key)

    def as_dot_product(self, query: Tensor) -> tuple[Tensor, float]:
        """A dot product as it stands."""
        return query, 1.0


class ScaledDot(Score):
    """q^T k / sqrt(D_K), see `scaled_dot`."""

    fusable = "plain"

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        """[B, H, T, K], [B, H, S, K] -> [B, H, T, S]."""
        _expect_equal(query, key)
        return scaled_dot(query, key)

    def as_dot_product(self, query: Tensor) -> tuple[Tensor, float]:
        """A dot product with scale 1/sqrt(D_K)."""
        return query, 1.0 / math.sqrt(query.shape[-1])


class Bilinear(Score):
    """q^T W k, see `bilinear`."""

    fusable = "mapped"

    def __init__(self, query_width: int, key_width: int, heads: int = 1) -> None:
        super().__init__()
        self.W = normal_parameter(heads, query_width, key_width, std=(query_width * key_width) ** -0.25)

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        """[B, H, T, D_Q], [B, H, S, D_K] -> [B, H, T, S]."""
        return bilinear(query, key, self.W)

    def as_dot_product(self, query: Tensor) -> tuple[Tensor, float]:
        """The query is mapped first: (q W)^T k."""
        return _map_heads(query, self.W), 1.0


class Additive(Score):
    """v^T tanh(W q + U k), see `additive`."""

    def __init__(self, query_width: int, key_width: int, heads: int = 1, hidden: int | None = None) -> None:
        super().__init__()
        F = hidden or key_width
        self.W = normal_parameter(heads, F, query_width, std=query_width**-0.5)
        self.U = normal_parameter(heads, F, key_width, std=key_width**-0.5)
        self.v = normal_parameter(heads, F, std=F**-0.5)

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        """[B, H, T, D_Q], [B, H, S, D_K] -> [B, H, T, S]."""
        return additive(query, key, self.W, self.U, self.v)

    def prepare(self, key: Tensor) -> Tensor:
        """U k."""
        return _map_heads(key, self.U.transpose(-2, -1))

    def compare(self, query: Tensor, prepared: Tensor) -> Tensor:
        """v^T tanh(W q + prepared)."""
        return _additive_prepared(query, prepared, self.W, self.v)


class Concatenated(Score):
    """w^T [q; k], see `concatenated`."""

    def __init__(self, query_width: int, key_width: int, heads: int = 1) -> None:
        super().__init__()
        self.w = normal_parameter(heads, query_width + key_width, std=(query_width + key_width) ** -0.5)

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        """[B, H, T, D_Q], [B, H, S, D_K] -> [B, H, T, S]."""
        return concatenated(query, key, self.w)


def _expect_equal(query: Tensor, key: Tensor) -> None:
    if query.shape[-1] != key.shape[-1]:
        raise ShapeError(
            f"a dot product needs queries and keys of one width, but D_Q = {query.shape[-1]} and "
            f"D_K = {key.shape[-1]}: use a bilinear, additive or concatenated score"
        )
