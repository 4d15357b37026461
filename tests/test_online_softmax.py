"""The readable FlashAttention: the same numbers as A in memory, forward and backward, without A in memory."""

from __future__ import annotations

import pytest
import torch

import weft
from weft.parts.attention_context import AttentionContext
from weft.parts.kernels import explicit
from weft.parts.masks import Causal, Documents, Graph, Padding, Window
from weft.parts.online_softmax import online_softmax_attention
from weft.parts.relative import Alibi, RelativeKeysAndValues
from weft.parts.scores import ScaledDot
from weft.parts.token_positions import TokenPositions

B, H, G, T, K, V = 2, 4, 2, 23, 5, 7
DOCUMENTS = torch.tensor([[0] * 9 + [1] * 14, [0] * 2 + [1] * 21])
MASKS = {
    "none": None,
    "causal": Causal(),
    "window": Causal() & Window(3),
    "padding": Padding(torch.tensor([23, 11])),
    "documents": Causal() & Documents(DOCUMENTS),
    "rows that see nothing": Graph(torch.arange(T)[:, None] > torch.arange(T) + 4),
}


def drawn(*shape):
    return torch.randn(shape, dtype=torch.float64, requires_grad=True)


@pytest.mark.parametrize("block", [1, 7, 100])
@pytest.mark.parametrize("name", MASKS)
def test_it_is_softmax_attention_forward_and_backward(name, block):
    torch.manual_seed(4)
    given = drawn(B, H, T, K), drawn(B, G, T, K), drawn(B, G, T, V)
    context = AttentionContext.of(torch.zeros(B, T, 1), MASKS[name])
    direction = torch.randn(B, H, T, V, dtype=torch.float64)
    wanted, A = explicit(*given, context, ScaledDot(scale=0.7))
    found = online_softmax_attention(*given, context, 0.7, block)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-10)
    gradients = (torch.autograd.grad((y * direction).sum(), given) for y in (found, wanted))
    for one, other in zip(*gradients, strict=True):
        assert one.isfinite().all()
        torch.testing.assert_close(one, other, rtol=0, atol=1e-10)
    if name == "rows that see nothing":
        assert not A[:, :, :5].any() and torch.equal(found[:, :, :5], torch.zeros(B, H, 5, V, dtype=torch.float64))


def test_scores_that_would_overflow_do_not():
    """exp(1000) is infinite; the running maximum keeps every exponent at 0 or below."""
    q, k, v = 30 * torch.randn(1, 1, 5, 3), 30 * torch.randn(1, 1, 11, 3), torch.randn(1, 1, 11, 2)
    context = AttentionContext(
        TokenPositions.run(0, 5, torch.device("cpu")), TokenPositions.run(0, 11, torch.device("cpu"))
    )
    wanted = explicit(q.double(), k.double(), v.double(), context, ScaledDot())[0]
    found = online_softmax_attention(q, k, v, context, block=2)
    assert (q @ k.transpose(-2, -1)).max() > 500
    torch.testing.assert_close(found.double(), wanted, rtol=0, atol=1e-4)
    assert online_softmax_attention(q.bfloat16(), k.bfloat16(), v.bfloat16(), context).dtype == torch.bfloat16


def test_what_it_does_not_compute_is_refused():
    q = torch.randn(1, 2, 5, 4)
    for position in (Alibi(2), RelativeKeysAndValues(4)):
        context = AttentionContext(TokenPositions.run(0, 5, torch.device("cpu")), position=position)
        with pytest.raises(weft.WeftError, match=f"{type(position).__name__} changes scores or values.*blocked"):
            online_softmax_attention(q, q, q, context)
