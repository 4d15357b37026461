"""Look-up in a key-value store, hard and soft: attention is the soft one.

A store holds keys k_1 .. k_S and their values v_1 .. v_S; a query q is compared with every key, e_j = q^T k_j.

    hard   y = v_j* with j* = argmax_j e_j             one value as it is; no gradient says which key would be better
    soft   y = sum_j a_j v_j, a = softmax(e / tau)     a mixture of values, smooth in q and k

At temperature tau -> 0 soft look-up becomes the hard one, at tau -> infinity the mean of all values. Cross-attention is
soft look-up at tau = sqrt(D_Q) in a store that is learned, K = X W_K and V = X W_V (`weft.parts.attention`).
Shapes: queries [..., T, D], keys [..., S, D], values [..., S, V].
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from weft.foundation.errors import ShapeError, WeftError
from weft.parts.scores import dot, weigh


def hard_lookup(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """(Y [..., T, V], A [..., T, S]): the value of the best key; A is 1 there and 0 elsewhere.

    Of keys that fit equally well the first is taken.
    """
    _expect_store(query, key, value)
    best = dot(query, key).argmax(-1)
    weights = torch.nn.functional.one_hot(best, key.shape[-2]).to(value.dtype)
    return weights @ value, weights


def soft_lookup(query: Tensor, key: Tensor, value: Tensor, temperature: float = 1.0) -> tuple[Tensor, Tensor]:
    """(Y [..., T, V], A [..., T, S]): A = softmax(Q K^T / temperature), Y = A V."""
    _expect_store(query, key, value)
    if not 0 < temperature < math.inf:
        raise WeftError(f"a temperature of {temperature:g}: give a number above 0, such as 0.5; hard look-up has none")
    weights = weigh(dot(query, key) / temperature)
    return weights.to(value.dtype) @ value, weights


def _expect_store(query: Tensor, key: Tensor, value: Tensor) -> None:
    if query.shape[-1] != key.shape[-1]:
        raise ShapeError(
            f"queries of {query.shape[-1]} numbers and keys of {key.shape[-1]} cannot be compared: give them one width"
        )
    if key.shape[-2] != value.shape[-2] or not key.shape[-2]:
        raise ShapeError(f"{key.shape[-2]} keys and {value.shape[-2]} values: give one value per key, and at least one")


__all__ = ["hard_lookup", "soft_lookup"]
