"""What lessons measure: learning with a held-out measure by step, seconds and memory of a call, exponents."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from weft.lessons.costs import cost_of, exponent
from weft.lessons.learning import learn


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_learning_minimizes_and_measures_held_out(optimizer):
    torch.manual_seed(0)
    model, wanted = nn.Sequential(nn.Linear(3, 7), nn.Dropout(0.5), nn.Linear(7, 2)), torch.randn(11, 2)
    x, modes = torch.randn(11, 3), []

    def loss(step):
        assert model.training and torch.is_grad_enabled()
        return (model(x) - wanted).square().mean()

    def measure():
        modes.append((model.training, torch.is_grad_enabled()))
        return float((model(x) - wanted).square().mean())

    curve = learn(model, loss, 60, measure, optimizer=optimizer, rate=0.02, points=5)
    assert [step for step, _ in curve] == [0, 12, 24, 36, 48, 60]
    assert curve[-1][1] < curve[0][1]
    assert set(modes) == {(False, False)} and not model.training
    with torch.no_grad():
        assert curve[-1][1] == measure()


def test_without_a_measure_the_curve_is_the_batches_loss():
    weight = nn.Linear(1, 1, bias=False)
    nn.init.ones_(weight.weight)
    curve = learn(weight, lambda step: weight.weight.square().sum(), 4, optimizer="adamw", points=4)
    assert [step for step, _ in curve] == [0, 1, 2, 3]
    assert curve[0][1] == 1.0 and curve[-1][1] < 1.0


def test_memory_is_the_peak_of_the_call_also_the_second_time():
    def call():
        return torch.ones(3, 2**20).sum()  # 12 MiB

    assert all(11 < cost_of(call).mib < 20 for _ in range(3))
    assert cost_of(lambda: None).mib < 4
    assert cost_of(call).seconds > 0


def test_an_exponent_is_the_slope_in_logarithms():
    sizes = (1, 2, 4, 8, 16)
    assert exponent(sizes, [3 * n**1.5 for n in sizes]) == pytest.approx(1.5)
    assert exponent(sizes, [1000, 2, 4, 8, 16]) == pytest.approx(1)  # the last four alone
    assert exponent(sizes, [7] * 5) == pytest.approx(0)
