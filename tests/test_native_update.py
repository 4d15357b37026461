"""Clipping and AdamW over all weights in one call: torch's own, judged in float64."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from weft.foundation.threads import number_of_threads
from weft.training.native import OneCallAdamW, clip_gradients
from weft.training.native.library import updates

SIZES = ((7,), (131, 67), (1,), (20011,))
SETTINGS = {"lr": 3e-3, "betas": (0.9, 0.95), "eps": 1e-10, "weight_decay": 0.1}

pytestmark = pytest.mark.skipif(updates() is None, reason="no C compiler")


def draw(dtype=torch.float32):
    made = torch.Generator().manual_seed(3)
    return [nn.Parameter(torch.randn(size, generator=made).to(dtype)) for size in SIZES]


def give_gradients(weights, step):
    made = torch.Generator().manual_seed(step)
    for weight in weights:
        weight.grad = torch.randn(weight.shape, generator=made).to(weight.dtype)


@pytest.mark.parametrize("most", [0.5, 1e9, float("inf")])
def test_clipping_is_torchs(most):
    own, exact = draw(), draw(torch.float64)
    for weights in (own, exact):
        give_gradients(weights, 5)
    before = [w.grad.clone() for w in own]
    norm, expected = clip_gradients(own, most), nn.utils.clip_grad_norm_(exact, most)
    torch.testing.assert_close(norm.double(), expected, rtol=1e-6, atol=0)
    for weight, other, old in zip(own, exact, before, strict=True):
        torch.testing.assert_close(weight.grad.double(), other.grad, rtol=1e-6, atol=0)
        assert torch.equal(weight.grad, old) == (most > 1)


def test_a_gradient_that_is_not_finite_has_no_finite_norm():
    weights = draw()
    give_gradients(weights, 5)
    weights[1].grad[3, 5] = float("nan")
    assert not torch.isfinite(clip_gradients(weights, 1.0))


def test_threads_change_no_bit():
    found = []
    for threads in (1, 2):
        with number_of_threads(threads):
            weights = draw()
            optimizer = OneCallAdamW(weights, **SETTINGS, fused=True)
            for step in range(3):
                give_gradients(weights, step)
                norm = clip_gradients(weights, 1.0)
                optimizer.step()
        found.append([norm, *(w.detach() for w in weights)])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def test_adamw_takes_torchs_steps():
    own, exact = draw(), draw(torch.float64)
    ours, theirs = OneCallAdamW(own, **SETTINGS, fused=True), torch.optim.AdamW(exact, **SETTINGS)
    for step in range(5):
        for weights in (own, exact):
            give_gradients(weights, step)
            weights[0].grad = None if step == 3 else weights[0].grad  # a weight that a step does not touch
        version = own[1]._version
        ours.step()
        theirs.step()
        assert own[1]._version > version
    for weight, other in zip(own, exact, strict=True):
        torch.testing.assert_close(weight.double(), other, rtol=3e-6, atol=3e-6)
        for name in ("exp_avg", "exp_avg_sq"):
            torch.testing.assert_close(
                ours.state[weight][name].double(), theirs.state[other][name], rtol=3e-6, atol=3e-7
            )
        assert float(ours.state[weight]["step"]) == float(theirs.state[other]["step"])


def test_state_goes_on_in_torchs_optimizer_and_back():
    weights = draw()
    optimizer = OneCallAdamW(weights, **SETTINGS, fused=True)
    for step in range(2):
        give_gradients(weights, step)
        optimizer.step()
    others = [nn.Parameter(w.detach().clone()) for w in weights]
    torchs = torch.optim.AdamW(others, **SETTINGS, fused=True)
    torchs.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    give_gradients(weights, 7)
    give_gradients(others, 7)
    optimizer.step()
    torchs.step()
    for weight, other in zip(weights, others, strict=True):
        torch.testing.assert_close(weight, other, rtol=1e-6, atol=1e-7)


def test_float64_takes_torchs_way():
    weights, others = draw(torch.float64), draw(torch.float64)
    ours, theirs = OneCallAdamW(weights, **SETTINGS, fused=True), torch.optim.AdamW(others, **SETTINGS, fused=True)
    for step in range(3):
        give_gradients(weights, step)
        give_gradients(others, step)
        assert torch.equal(clip_gradients(weights, 0.5), nn.utils.clip_grad_norm_(others, 0.5))
        ours.step()
        theirs.step()
    assert all(torch.equal(a, b) for a, b in zip(weights, others, strict=True))
