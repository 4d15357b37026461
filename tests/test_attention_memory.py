"""Memory of attention is O(N): no kernel that is chosen by itself makes a tensor as large as A, forward or backward."""

from __future__ import annotations

import pytest
import torch

from largest_tensor import LargestTensor
from weft.parts.attention import CrossAttention, SelfAttention, set_backend
from weft.parts.attention_context import AttentionContext
from weft.parts.kernels import BLOCK
from weft.parts.masks import Causal, Documents, Padding, Prefix, Real, Window
from weft.parts.online_softmax import online_softmax_attention
from weft.parts.relative import Alibi, BucketedBias, RelativeKeysAndValues, RelativeVectors
from weft.parts.scores import Additive, Bilinear, CappedDot, LinearDot
from weft.parts.token_positions import TokenPositions

B, H, T, D = 2, 2, 1100, 10  # T x T is more than 2^20 pairs
LENGTHS = torch.tensor([T, 700])
REAL = torch.arange(T) >= torch.tensor([[0], [300]])
DOCUMENTS = (torch.arange(T) > torch.tensor([[400], [900]])).long()
MASKS = {
    "none": None,
    "causal": Causal(),
    "padding": Padding(LENGTHS),
    "padding on the left": Real(REAL),
    "causal, padding on the left": Causal() & Real(REAL),
    "window": Causal() & Window(31),
    "documents": Causal() & Documents(DOCUMENTS),
    "prefix": Prefix(7),
}
POSITIONS = {
    "alibi": lambda: Alibi(H),
    "bucketed": lambda: BucketedBias(H, 8, 13),
    "relative": lambda: RelativeVectors(5, 3),
    "relative values": lambda: RelativeKeysAndValues(5, 5, 3),
}
SCORES = {
    "bilinear": lambda: Bilinear(5, 5, H),
    "capped": lambda: CappedDot(cap=2.0),
    "additive": lambda: Additive(5, 5, H, 2),
    "linear": lambda: LinearDot(),
}


def largest(attention, x, context, *memory):
    """The largest tensor of one forward and backward pass."""
    with LargestTensor() as seen:
        attention(x, *memory, context).sum().backward()
    assert x.grad is not None
    return seen.numbers


def bound(maps=B * H, hidden=1):
    """What one block of queries may take, and far less than A."""
    return maps * BLOCK * T * hidden


def given():
    return torch.randn(B, T, D, requires_grad=True)


@pytest.mark.parametrize("name", MASKS)
def test_no_mask_is_stored_with_all_its_pairs(name):
    x = given()
    assert largest(SelfAttention(D, H, 1), x, AttentionContext.of(x, MASKS[name])) <= bound()


@pytest.mark.parametrize("sizes", [(5, 3), (3, 5)])
@pytest.mark.parametrize("name", ["none", "causal", "padding", "window"])
def test_keys_and_values_of_different_widths(name, sizes):
    x = given()
    attention = SelfAttention(D, H, 1, *sizes)
    assert largest(attention, x, AttentionContext.of(x, MASKS[name])) <= bound()
    x = torch.randn(B, 11, D)
    context = AttentionContext.of(x, None if MASKS[name] is None else Causal())
    found = {}
    for backend in ("explicit", "fused"):
        set_backend(attention.double(), backend)
        found[backend] = attention(x.double(), context)
    torch.testing.assert_close(found["explicit"], found["fused"], rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", ["none", "causal", "padding", "window"])
def test_dropout_in_training(name):
    x = given()
    attention = SelfAttention(D, H, dropout=0.2)
    context = AttentionContext.of(x, MASKS[name])
    assert largest(attention, x, context) <= bound()
    assert attention.note(context).startswith("blocked: ") and not attention.kernel(context).stores_weights
    assert "dropout" not in attention.eval().note(context)


def test_dropout_of_many_short_texts():
    """A of 2 x 130 maps of 260 x 260 is 17.6 million numbers, though one map is small."""
    x = torch.randn(130, 260, 4, requires_grad=True)
    attention = SelfAttention(4, 2, dropout=0.2)
    with LargestTensor() as seen:
        attention(x, AttentionContext.of(x)).sum().backward()
    assert seen.numbers <= 260 * BLOCK * 260
    assert attention.note(AttentionContext.of(x)).startswith("fused: the mask is not needed; with dropout torch stores")
    assert attention.note(AttentionContext.of(x), batch=130).startswith("blocked: with dropout torch stores A")


@pytest.mark.parametrize("name", POSITIONS)
def test_positions_inside_attention(name):
    x, position = given(), POSITIONS[name]()
    assert largest(SelfAttention(D, H), x, AttentionContext.of(x, Causal(), position)) <= bound()
    assert all(weight.grad is not None and weight.grad.any() for weight in position.parameters())


@pytest.mark.parametrize("name", ["bucketed", "relative"])
def test_positions_that_are_frozen(name):
    x, position = given(), POSITIONS[name]().requires_grad_(False)
    assert largest(SelfAttention(D, H), x, AttentionContext.of(x, Causal(), position)) <= bound()


@pytest.mark.parametrize("name", SCORES)
def test_scores_of_all_kinds(name):
    x, score = given(), SCORES[name]()
    assert largest(SelfAttention(D, H, score=score), x, AttentionContext.of(x, Causal())) <= bound(hidden=2)
    assert all(weight.grad is not None and weight.grad.any() for weight in score.parameters())


def test_cross_attention_to_a_padded_memory():
    x, memory = given(), torch.randn(B, T, 7)
    keys = TokenPositions.of_real(torch.arange(T) < LENGTHS[:, None])
    context = AttentionContext(AttentionContext.of(x).queries, keys)
    assert largest(CrossAttention(D, H, 7), x, context, memory) <= bound()


def test_the_readable_kernel():
    q, k, v = (torch.randn(1, H, T, 5, requires_grad=True) for _ in range(3))
    context = AttentionContext(TokenPositions.run(0, T, torch.device("cpu")), mask=Causal())
    with LargestTensor() as seen:
        online_softmax_attention(q, k, v, context).sum().backward()
    assert seen.numbers <= bound(H)


def test_the_measure_sees_a_stored_map():
    x = given()
    attention = SelfAttention(D, H)
    set_backend(attention, "explicit")
    assert largest(attention, x, AttentionContext.of(x)) == B * H * T * T
