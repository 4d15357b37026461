"""Scores e(q, k): how well a query fits a key, and how scores become attention weights.

Shapes: q [B, H, T, D_Q], k [B, H, S, D_K] -> e [B, H, T, S]. A score that is a dot product after a map of the query
says so with `as_dot_product`, and then runs in the fused kernel; the others are computed explicitly, or in blocks.

A new score is one class: a subclass of `Score`, named in `SCORES` or in the entry points `weft.scores` of its package.
"""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor

from weft.foundation.errors import ShapeError, WeftError
from weft.foundation.matrix_products import MatrixProduct, Products, ProductView
from weft.foundation.numerics import widen
from weft.foundation.plugins import Registry
from weft.parts.parameters import normal_parameter
from weft.parts.score import Fusable, Score, ScoreStep, softmax_steps, weigh

CAP = 50.0  # that of Gemma 2


def dot(query: Tensor, key: Tensor) -> Tensor:
    """e_ij = q_i^T k_j (Luong et al. 2015)."""
    return query @ key.transpose(-2, -1)


def scaled_dot(query: Tensor, key: Tensor, scale: float | None = None) -> Tensor:
    """e_ij = q_i^T k_j / sqrt(D_K): unit variance for unit normal q, k, softmax starts soft (Vaswani et al. 2017).

    `scale`: another number in place of 1/sqrt(D_K).
    """
    return dot(query * (query.shape[-1] ** -0.5 if scale is None else scale), key)


def capped_dot(query: Tensor, key: Tensor, cap: float = CAP, scale: float | None = None) -> Tensor:
    """e_ij = c tanh(q_i^T k_j / sqrt(D_K) / c): close to the scaled dot product while small, always within +-c.

    A score that cannot grow keeps the softmax from closing on one key (Gemma Team 2024, Gemma 2).
    """
    return cap * torch.tanh(widen(scaled_dot(query, key, scale)) / cap)


def bilinear(query: Tensor, key: Tensor, W: Tensor) -> Tensor:
    """e_ij = q_i^T W k_j, W [H, D_Q, D_K] or [D_Q, D_K]; D_Q and D_K may differ (Luong's "general")."""
    return dot(_map_heads(query, W), key)


def _map_heads(x: Tensor, W: Tensor) -> Tensor:
    """x_h W_h, [B, H, T, D] and [H, D, F] or [D, F] -> [B, H, T, F].

    Broadcasting would copy W, and its gradient, once per row of the batch.
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


class _DotProduct(Score):
    """What the kinds of q^T k share: equal widths, one product per head."""

    equal_widths = True

    def matrix_products(self, widths: tuple[int, int], view: ProductView, heads: int = 1) -> Products:
        return (MatrixProduct("Q K^T", "Q K^T", view.queries, widths[1], view.seen, heads),)


class Dot(_DotProduct):
    """q^T k, see `dot`."""

    kind = "dot"
    formula = "e_ij = q_i.k_j"
    fusable: Fusable = "plain"

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        """[B, H, T, K], [B, H, S, K] -> [B, H, T, S]."""
        _expect_equal(query, key)
        return dot(query, key)

    def as_dot_product(self, query: Tensor) -> tuple[Tensor, float]:
        return query, 1.0

    def explain(self, query: Tensor, keys: Tensor, head: int = 0, heads: int = 1) -> tuple[ScoreStep, ...]:
        return (ScoreStep("scores", self.formula, {"e": keys @ query}),)


class ScaledDot(_DotProduct):
    """q^T k / sqrt(D_K), see `scaled_dot`; `scale` in place of 1/sqrt(D_K) where it is given."""

    kind = "scaled-dot"
    formula = "e_ij = q_i.k_j / sqrt(D_K)"
    settings: ClassVar[tuple[str, ...]] = ("scale",)
    fusable: Fusable = "plain"

    def __init__(
        self,
        query_width: int | None = None,
        key_width: int | None = None,
        heads: int = 1,
        scale: float | None = None,
    ) -> None:
        super().__init__(query_width, key_width, heads)
        self.scale = scale
        if scale is not None:
            self.formula = self.formula.replace("q_i.k_j / sqrt(D_K)", f"{scale:.4g} q_i.k_j")

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        """[B, H, T, K], [B, H, S, K] -> [B, H, T, S]."""
        _expect_equal(query, key)
        return scaled_dot(query, key, self.scale)

    def scale_of(self, width: int) -> float:
        """The number that q^T k is multiplied by, for queries and keys of this width."""
        return width**-0.5 if self.scale is None else self.scale

    def as_dot_product(self, query: Tensor) -> tuple[Tensor, float]:
        return query, self.scale_of(query.shape[-1])

    def scaled_query(self, query: Tensor) -> Tensor:
        return query * self.scale_of(query.shape[-1])

    def explain(self, query: Tensor, keys: Tensor, head: int = 0, heads: int = 1) -> tuple[ScoreStep, ...]:
        K = query.shape[-1]
        words = f", D_K = {K}, sqrt = {math.sqrt(K):.4g}" if self.scale is None else ""
        return scaled_steps(keys @ query, self.scale_of(K), self.formula + words)


def scaled_steps(products: Tensor, scale: float, formula: str) -> tuple[ScoreStep, ...]:
    """Dot products [S] and what a scale makes of them, in numbers."""
    return ScoreStep("products", "q_i.k_j", {"q.k": products}), ScoreStep("scores", formula, {"e": products * scale})


class LinearDot(ScaledDot):
    """Linear attention in its plain form: a_ij = q_i^T k_j / sqrt(D_K), without a softmax; 0 where hidden.

    Weights may be negative and a row's sum is free, so y_i = (sum_j v_j k_j^T) q_i / sqrt(D_K) is linear in the query
    (Schlag et al. 2021). The mixer "linear-attention" sums k_j v_j^T first, in O(N); here the weights can be seen.
    """

    kind = "linear"
    fusable: Fusable = "never"
    normalized = False

    def as_dot_product(self, query: Tensor) -> tuple[Tensor, float]:
        raise WeftError("the linear score leaves out the softmax that the fused kernel applies: compute it explicitly")

    def weigh(self, scores: Tensor, visible: Tensor | None = None) -> Tensor:
        wide_scores = widen(scores)
        return wide_scores if visible is None else wide_scores.masked_fill(~visible, 0.0)

    def explain_weights(self, scores: Tensor) -> tuple[ScoreStep, ...]:
        weights = self.weigh(scores, ~scores.isneginf())
        return (ScoreStep("weights", "a_ij = e_ij, no softmax, 0 where hidden", {"a": weights}),)


class CappedDot(ScaledDot):
    """c tanh(q^T k / sqrt(D_K) / c), see `capped_dot`; `scale` in place of 1/sqrt(D_K) where it is given."""

    kind = "capped-dot"
    formula = "e_ij = c tanh(q_i.k_j / sqrt(D_K) / c)"
    settings = ("scale", "cap")
    fusable: Fusable = "never"

    def __init__(
        self,
        query_width: int | None = None,
        key_width: int | None = None,
        heads: int = 1,
        scale: float | None = None,
        cap: float = CAP,
    ) -> None:
        super().__init__(query_width, key_width, heads, scale)
        self.cap = cap

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        """[B, H, T, K], [B, H, S, K] -> [B, H, T, S]."""
        _expect_equal(query, key)
        return capped_dot(query, key, self.cap, self.scale)

    def as_dot_product(self, query: Tensor) -> tuple[Tensor, float]:
        raise WeftError("the capped score puts a tanh on the dot product: compute it explicitly or in blocks")

    def explain(self, query: Tensor, keys: Tensor, head: int = 0, heads: int = 1) -> tuple[ScoreStep, ...]:
        inner = (keys @ query) * self.scale_of(query.shape[-1])
        formula = self.formula.removeprefix("e_ij = c tanh(").removesuffix(" / c)")
        return (
            ScoreStep("scaled products", formula, {"s": inner}),
            ScoreStep("scores", f"{self.formula}, c = {self.cap:.4g}", {"e": self.cap * torch.tanh(inner / self.cap)}),
        )


class Bilinear(Score):
    """q^T W k, see `bilinear`."""

    kind = "bilinear"
    formula = "e_ij = q_i^T W k_j"
    fusable: Fusable = "mapped"

    def __init__(self, query_width: int, key_width: int, heads: int = 1) -> None:
        super().__init__()
        self.W = normal_parameter(heads, query_width, key_width, std=(query_width * key_width) ** -0.25)

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        """[B, H, T, D_Q], [B, H, S, D_K] -> [B, H, T, S]."""
        return bilinear(query, key, self.W)

    def as_dot_product(self, query: Tensor) -> tuple[Tensor, float]:
        return _map_heads(query, self.W), 1.0

    def matrix_products(self, widths: tuple[int, int], view: ProductView, heads: int = 1) -> Products:
        D_Q, D_K = widths
        return (
            MatrixProduct("Q W", "Q W", view.queries, D_Q, D_K, heads),
            MatrixProduct("Q K^T", "Q K^T", view.queries, D_K, view.seen, heads),
        )

    def explain(self, query: Tensor, keys: Tensor, head: int = 0, heads: int = 1) -> tuple[ScoreStep, ...]:
        mapped = query @ _of_head(self.W, head, query)
        return (
            ScoreStep("mapped query", "q_i^T W", {"q W": mapped}, "W", per_key=False),
            ScoreStep("scores", self.formula, {"e": keys @ mapped}),
        )


class Additive(Score):
    """v^T tanh(W q + U k), see `additive`."""

    kind = "additive"
    formula = "e_ij = v^T tanh(W q_i + U k_j)"

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
        """U k, computed once per key."""
        return _map_heads(key, self.U.transpose(-2, -1))

    def compare(self, query: Tensor, prepared: Tensor) -> Tensor:
        """v^T tanh(W q + prepared)."""
        return _additive_prepared(query, prepared, self.W, self.v)

    def matrix_products(self, widths: tuple[int, int], view: ProductView, heads: int = 1) -> Products:
        F = self.v.shape[-1]
        return (
            MatrixProduct("W q", "Q W", view.queries, widths[0], F, heads),
            MatrixProduct("U k", "K U", view.keys, widths[1], F, heads),
            MatrixProduct("v tanh", "v^T tanh(W q + U k)", view.queries * view.seen, F, 1, heads),
        )

    def explain(self, query: Tensor, keys: Tensor, head: int = 0, heads: int = 1) -> tuple[ScoreStep, ...]:
        W, U, v = (_of_head(weight, head, query) for weight in (self.W, self.U, self.v))
        inner = torch.tanh(W @ query + keys @ U.T)
        return (
            ScoreStep("mapped query", "W q_i", {"W q": W @ query}, "W", per_key=False),
            ScoreStep("mapped keys", "U k_j", {"U k": keys @ U.T}, "U"),
            ScoreStep("hidden", "tanh(W q_i + U k_j)", {"h": inner}),
            ScoreStep("scores", self.formula, {"e": inner @ v}, "v"),
        )


class Concatenated(Score):
    """w^T [q; k], see `concatenated`."""

    kind = "concatenated"
    formula = "e_ij = w^T [q_i; k_j] = w_q^T q_i + w_k^T k_j"

    def __init__(self, query_width: int, key_width: int, heads: int = 1) -> None:
        super().__init__()
        self.w = normal_parameter(heads, query_width + key_width, std=(query_width + key_width) ** -0.5)

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        """[B, H, T, D_Q], [B, H, S, D_K] -> [B, H, T, S]."""
        return concatenated(query, key, self.w)

    def matrix_products(self, widths: tuple[int, int], view: ProductView, heads: int = 1) -> Products:
        return (
            MatrixProduct("w q", "Q w_q", view.queries, widths[0], 1, heads),
            MatrixProduct("w k", "K w_k", view.keys, widths[1], 1, heads),
        )

    def explain(self, query: Tensor, keys: Tensor, head: int = 0, heads: int = 1) -> tuple[ScoreStep, ...]:
        w_q, w_k = _of_head(self.w, head, query).split([query.shape[-1], keys.shape[-1]])
        share = w_q @ query
        return (
            ScoreStep("query's share", "w_q^T q_i, the same for all keys", {"w q": share}, "w", per_key=False),
            ScoreStep("scores", self.formula, {"e": keys @ w_k + share}),
        )


SCORES: Registry[type[Score]] = Registry(
    "weft.scores",
    "score",
    {score.kind: score for score in (ScaledDot, Dot, Bilinear, Additive, Concatenated, LinearDot, CappedDot)},
)


def build_score(
    kind: str, query_width: int, key_width: int, heads: int = 1, scale: float | None = None, cap: float | None = None
) -> Score:
    """The score of this kind, with one set of weights per head; `scale` and `cap` for those that have them."""
    score = SCORES[kind]
    if not (isinstance(score, type) and issubclass(score, Score)):
        raise WeftError(f"score {kind!r} is not a class of weft.parts.scores.Score: fix the package that adds it")
    if score.equal_widths and query_width != key_width:
        raise ShapeError(_unequal(query_width, key_width))
    given = {name: value for name, value in (("scale", scale), ("cap", cap)) if value is not None}
    for name in given:
        if name not in score.settings:
            raise WeftError(f"the score {kind!r} has no {name}: {setting_remedy(name)}")
    return score(query_width, key_width, heads, **given)


def setting_remedy(name: str) -> str:
    """Which scores have this setting, in words."""
    return f"use {' or '.join(kind for kind in SCORES.builtin if name in SCORES[kind].settings)}, or leave it out"


def _of_head(weight: Tensor, head: int, like: Tensor) -> Tensor:
    """One head's weights; one set may serve all heads."""
    return weight[head if weight.shape[0] > 1 else 0].to(like)


def _expect_equal(query: Tensor, key: Tensor) -> None:
    if query.shape[-1] != key.shape[-1]:
        raise ShapeError(_unequal(query.shape[-1], key.shape[-1]))


def _unequal(query_width: int, key_width: int) -> str:
    return (
        f"a dot product needs queries and keys of one width, but D_Q = {query_width} and D_K = {key_width}: "
        "use a bilinear, additive or concatenated score"
    )


__all__ = [
    "CAP",
    "SCORES",
    "Additive",
    "Bilinear",
    "CappedDot",
    "Concatenated",
    "Dot",
    "Fusable",
    "LinearDot",
    "ScaledDot",
    "Score",
    "ScoreStep",
    "additive",
    "bilinear",
    "build_score",
    "capped_dot",
    "concatenated",
    "dot",
    "scaled_dot",
    "scaled_steps",
    "setting_remedy",
    "softmax_steps",
    "weigh",
]
