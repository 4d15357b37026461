"""The likeliest token and log-sum-exp of logits: what torch says, in bits that neither company nor threads change."""

from __future__ import annotations

import math

import pytest
import torch

from weft.foundation.threads import number_of_threads
from weft.inference.decoding.sampling import GREEDY, choose_tokens
from weft.inference.fast.native import summaries
from weft.inference.fast.native.library import library
from weft.inference.fast.native.summaries import likeliest, log_sum_exp

native = pytest.mark.skipif(library() is None, reason="no C compiler")


@pytest.mark.parametrize("width", [1, 7, 8, 509, 4096, 4097, 12289, 50257])
def test_summaries_are_those_of_torch(width: int) -> None:
    logits = 9 * torch.randn(5, width, generator=torch.Generator().manual_seed(width))
    assert torch.equal(likeliest(logits), logits.argmax(-1))
    torch.testing.assert_close(log_sum_exp(logits).double(), logits.double().logsumexp(-1), rtol=3e-7, atol=1e-6)


def test_the_first_of_equals_is_the_likeliest() -> None:
    logits = torch.zeros(3, 9001)
    logits[1, [5003, 8009]] = 2.0
    logits[2, 4095:4099] = 1.0
    assert likeliest(logits).tolist() == [0, 5003, 4095]


def test_infinities_and_nan_are_told_not_hidden() -> None:
    logits = torch.randn(5, 4099)
    logits[0] = -math.inf
    logits[1, 4098] = math.inf
    logits[2, 17] = math.nan
    logits[3, :4000] = -math.inf
    assert likeliest(logits)[1] == 4098
    assert likeliest(logits)[2] == 17
    found, expected = log_sum_exp(logits), logits.logsumexp(-1)
    torch.testing.assert_close(found, expected, equal_nan=True)


@native
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_neither_company_nor_threads_change_a_bit(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(summaries, "ONE_THREAD", 0)
    logits = 4 * torch.randn(13, 40961, generator=torch.Generator().manual_seed(3))
    alone = torch.cat([log_sum_exp(row[None]) for row in logits])
    with number_of_threads(threads):
        assert torch.equal(log_sum_exp(logits), alone)
        assert torch.equal(log_sum_exp(logits[3:5]), alone[3:5])


def test_a_choice_and_its_log_probability() -> None:
    logits = torch.randn(3, 8209, generator=torch.Generator().manual_seed(1))
    tokens, chances = choose_tokens(logits, GREEDY)
    expected = logits.double().log_softmax(-1).amax(-1)
    torch.testing.assert_close(chances.double(), expected, rtol=1e-6, atol=1e-6)
    assert torch.equal(tokens, logits.argmax(-1))


def test_other_types_and_gradients_go_through_torch() -> None:
    logits = torch.randn(2, 11, dtype=torch.float64, requires_grad=True)
    log_sum_exp(logits).sum().backward()
    assert logits.grad is not None
    torch.testing.assert_close(logits.grad, logits.detach().softmax(-1))
