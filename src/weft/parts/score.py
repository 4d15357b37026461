"""What a score is: e(q, k) says how well a query fits a key; `weigh` makes attention weights of scores.

Shapes: q [B, H, T, D_Q], k [B, H, S, D_K] -> e [B, H, T, S]. The kinds are in `weft.parts.scores`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from weft.foundation.errors import WeftError
from weft.foundation.matrix_products import Products, ProductView
from weft.foundation.numerics import widen

Fusable = Literal["plain", "mapped", "never"]


def weigh(scores: Tensor, visible: Tensor | None = None) -> Tensor:
    """A = softmax(E + M) over the keys, in float32 or wider; a row that may look nowhere gets zeros, never NaN."""
    wide_scores = widen(scores)
    if visible is None:
        return wide_scores.softmax(-1)
    lowest = torch.finfo(wide_scores.dtype).min
    return wide_scores.masked_fill(~visible, lowest).softmax(-1) * visible


@dataclass(frozen=True)
class ScoreStep:
    """One step of a score in numbers, for an explanation: values by name, one row per key where `per_key`.

    `weight` names the parameter that the step uses.
    """

    name: str
    formula: str
    values: dict[str, Tensor]
    weight: str = ""
    per_key: bool = True


class Score(nn.Module):
    """A score with its weights, one set per head: `score(q, k)` gives e [B, H, T, S].

    A subclass states `kind` (its name in a spec), `formula` and `matrix_products`. `equal_widths`: whether it needs
    D_Q = D_K. `fusable`: whether e = s q'^T k, which the fused kernel can run, with q' the query itself or a map of it.
    `normalized`: whether the weights of a row are a distribution, as after a softmax. `settings`: the numbers that a
    spec may give it beside its widths, by name.
    """

    kind: ClassVar[str] = ""
    formula: str = ""
    settings: ClassVar[tuple[str, ...]] = ()
    equal_widths: ClassVar[bool] = False
    fusable: Fusable = "never"
    normalized: ClassVar[bool] = True

    def __init__(self, query_width: int | None = None, key_width: int | None = None, heads: int = 1) -> None:
        super().__init__()

    def as_dot_product(self, query: Tensor) -> tuple[Tensor, float]:
        """(q', s) with e = s q'^T k, for the fused kernel."""
        raise WeftError(f"{type(self).__name__} is not a dot product: compute it explicitly")

    def scaled_query(self, query: Tensor) -> Tensor:
        """s q' with e = s q'^T k, so that a position's vector meets the query as a key does; else q / sqrt(D_K)."""
        if self.fusable == "never":
            return query * query.shape[-1] ** -0.5
        mapped, scale = self.as_dot_product(query)
        return mapped if scale == 1.0 else mapped * scale

    def prepare(self, key: Tensor) -> Tensor:
        """What can be computed from the keys alone, once for all queries that come one by one."""
        return key

    def compare(self, query: Tensor, prepared: Tensor) -> Tensor:
        """e(q, k) for prepared keys."""
        return self(query, prepared)

    def weigh(self, scores: Tensor, visible: Tensor | None = None) -> Tensor:
        """A [..., S] from e with the position's bias, 0 where not `visible`: a softmax, unless the score says else."""
        return weigh(scores, visible)

    def matrix_products(self, widths: tuple[int, int], view: ProductView, heads: int = 1) -> Products:
        """The products of e(q, k) for queries and keys of `widths` (D_Q, D_K)."""
        raise WeftError(f"the matrix products of the score {_name(self)} are not known: define its matrix_products")

    def explain(self, query: Tensor, keys: Tensor, head: int = 0, heads: int = 1) -> tuple[ScoreStep, ...]:
        """The steps to e_j for one query [D_Q] and its keys [S, D_K] in one head; the last holds them as "e"."""
        if not self.formula:
            raise WeftError(f"the score {_name(self)} cannot be explained: state its formula")
        given = (x.expand(1, heads, *x.shape) for x in (query[None], keys))
        return (ScoreStep("scores", self.formula, {"e": widen(self(*given))[0, head, 0]}),)

    def explain_weights(self, scores: Tensor) -> tuple[ScoreStep, ...]:
        """The steps from e_j [S], -inf where hidden, to the weights; the first holds them as "a"."""
        return softmax_steps(scores)


def softmax_steps(scores: Tensor) -> tuple[ScoreStep, ...]:
    """The softmax over e_j [S], -inf where hidden, in numbers."""
    hidden = scores.isneginf()
    weights = weigh(scores, ~hidden)
    shifted = torch.zeros_like(scores) if bool(hidden.all()) else (scores - scores.max()).exp()
    formula = "a_ij = exp(e_ij) / sum_j exp(e_ij)   (all divided by exp of the largest)"
    return (
        ScoreStep("softmax", formula, {"exp": shifted, "a": weights}),
        ScoreStep("sum of exp", "sum_j exp(e_ij - max)", {"sum": shifted.sum()}, per_key=False),
    )


def _name(score: Score) -> str:
    return repr(score.kind) if score.kind else type(score).__name__
