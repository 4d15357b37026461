"""Cross-attention as lectures draw it: queries as they are, keys and values of the data; watched and explained."""

from __future__ import annotations

import math

import pytest
import torch

import weft
from weft.foundation.errors import ShapeError
from weft.foundation.matrix_products import ProductView
from weft.inspection.analysis.explain import explain
from weft.inspection.interventions.interventions import switched_off
from weft.inspection.interventions.points import Head
from weft.models.products import products
from weft.parts.attention import PlainCrossAttention, cross_attention, set_backend
from weft.parts.attention_context import AttentionContext
from weft.parts.masks import Padding

CLOSE = 1e-10
B, N_Q, N_X, D_Q, D_X, D_V = 2, 5, 7, 3, 11, 13
SIZES = ((B, N_Q, D_Q), (B, N_X, D_X), (D_X, D_Q), (D_X, D_V))


def by_hand(Q, X, W_K, W_V):
    """The slide's formulas number by number: (Y, A) of one example."""
    K = [[sum(x[d] * W_K[d][c] for d in range(D_X)) for c in range(D_Q)] for x in X]
    V = [[sum(x[d] * W_V[d][c] for d in range(D_X)) for c in range(D_V)] for x in X]
    A, Y = [], []
    for q in Q:
        e = [sum(q[c] * k[c] for c in range(D_Q)) / math.sqrt(D_Q) for k in K]
        shares = [math.exp(one) / sum(map(math.exp, e)) for one in e]
        A.append(shares)
        Y.append([sum(a * v[c] for a, v in zip(shares, V, strict=True)) for c in range(D_V)])
    return Y, A


@pytest.fixture
def given(double):
    return [torch.randn(size) for size in SIZES]


def test_the_function_is_the_formula(given):
    Q, X, W_K, W_V = given
    Y, A = cross_attention(Q, X, W_K, W_V)
    assert Y.shape == (B, N_Q, D_V) and A.shape == (B, N_Q, N_X)
    for b in range(B):
        y, a = by_hand(Q[b].tolist(), X[b].tolist(), W_K.tolist(), W_V.tolist())
        assert torch.allclose(Y[b], torch.tensor(y), atol=CLOSE) and torch.allclose(A[b], torch.tensor(a), atol=CLOSE)
    alone, _ = cross_attention(Q[0], X[0], W_K, W_V)
    assert torch.allclose(alone, Y[0], atol=CLOSE)


@pytest.mark.parametrize("backend", ["auto", "explicit", "fused"])
def test_the_module_is_the_function_and_has_no_other_weights(given, backend):
    Q, X, W_K, W_V = given
    part = PlainCrossAttention(D_Q, D_X, D_V).double()
    set_backend(part, backend)
    assert {name: tuple(w.shape) for name, w in part.named_parameters()} == {
        "key.weight": (D_Q, D_X),
        "value.weight": (D_V, D_X),
    }
    with torch.no_grad():
        part.key.weight.copy_(W_K.T)
        part.value.weight.copy_(W_V.T)
    assert torch.allclose(part(Q, X), cross_attention(Q, X, W_K, W_V)[0], atol=CLOSE)
    assert PlainCrossAttention(D_Q, D_X).value_width == D_Q


def test_padding_of_the_data_changes_nothing(given):
    Q, X, *_ = given
    part = PlainCrossAttention(D_Q, D_X, D_V).double()
    seen = AttentionContext.of(X, Padding(torch.tensor([N_X, 4])))
    context = AttentionContext(AttentionContext.of(Q).queries, seen.queries)
    assert torch.allclose(part(Q, X, context)[1], part(Q[1:], X[1:, :4])[0], atol=CLOSE)


def test_it_is_watched_and_explained(given):
    Q, X, *_ = given
    part = PlainCrossAttention(D_Q, D_X, D_V).double()
    plain = part(Q, X)
    with weft.watch(part) as seen:
        assert torch.equal(part(Q, X), plain)
    Y, A = cross_attention(Q, X, part.key.weight.T, part.value.weight.T)
    assert seen.kinds == ["cross"]
    assert torch.allclose(seen.attention(0, head=0, batch=1), A[1], atol=CLOSE)
    found = explain(seen, row=2, batch=1)
    assert torch.allclose(found.output, Y[1, 2], atol=CLOSE)
    assert found.step("query").formula == "q_i: used as it is given" and "W_Q" not in str(found)
    assert torch.equal(found.step("query").values["q"], Q[1, 2])


def test_a_model_that_holds_it_is_watched_and_changed(given):
    Q, X, *_ = given

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.look = PlainCrossAttention(D_Q, D_X, D_V).double()

        def forward(self, Q, X):
            return self.look(Q, X)

    model = Model()
    with weft.watch(model) as seen:
        model(Q, X)
    assert seen.part() == "look" and seen.sizes() == (B, 1, N_Q, N_X)
    with switched_off(model, Head(0, 0, "cross")):
        assert not model(Q, X).any()


def test_its_matrix_products_are_counted():
    part = PlainCrossAttention(D_Q, D_X, D_V)
    found = products(part, ProductView(N_Q, N_X, N_X))
    assert [(p.formula, p.rows, p.inner, p.columns) for p in found] == [
        ("X W_K", N_X, D_X, D_Q),
        ("X W_V", N_X, D_X, D_V),
        ("Q K^T", N_Q, D_Q, N_X),
        ("A V", N_Q, N_X, D_V),
    ]


def test_wrong_widths_are_named():
    Q, X, W_K, W_V = (torch.zeros(size) for size in SIZES)
    with pytest.raises(ShapeError, match=r"width 3 and data of width 11 need W_K \[11, 3\] and W_V \[11, D_V\]"):
        cross_attention(Q, X, W_K.T, W_V)
    with pytest.raises(ShapeError, match="width 3"):
        cross_attention(Q, X, W_K, W_V.T)
    part = PlainCrossAttention(D_Q, D_X, D_V)
    with pytest.raises(ShapeError, match="queries"):
        part(X, X)
    with pytest.raises(ShapeError, match="data"):
        part(Q, Q)
