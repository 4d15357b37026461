"""The loss of a linear map in chunks: value and gradients as torch has them from whole logits."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from largest_tensor import LargestTensor
from weft.foundation.errors import WeftError
from weft.parts.linear_cross_entropy import linear_cross_entropy

N, C, D = 29, 53, 7


def draw(bias, dtype=torch.float64):
    made = torch.Generator().manual_seed(3)
    sizes = [(N, D), (C, D), *([(C,)] if bias else [])]
    tensors = [torch.randn(size, generator=made, dtype=torch.float64).to(dtype).requires_grad_() for size in sizes]
    return (*tensors, *([] if bias else [None])), torch.randint(C, (N,), generator=made)


def whole(hidden, W, b, labels, smoothing, cap):
    logits = F.linear(hidden, W, b)
    logits = logits if cap is None else cap * (logits / cap).tanh()
    return F.cross_entropy(logits, labels, reduction="sum", label_smoothing=smoothing)


@pytest.mark.parametrize("rows", [1, 5, N, 1000])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("cap", [None, 0.7])
@pytest.mark.parametrize("bias", [False, True])
def test_value_and_gradients_are_those_of_whole_logits(rows, smoothing, cap, bias):
    (hidden, W, b), labels = draw(bias)
    inputs = [t for t in (hidden, W, b) if t is not None]
    expected = whole(hidden, W, b, labels, smoothing, cap)
    wanted = torch.autograd.grad(0.3 * expected, inputs)
    found = linear_cross_entropy(hidden, W, b, labels, rows, smoothing, cap)
    torch.testing.assert_close(found, expected, atol=1e-10, rtol=0)
    for one, other in zip(torch.autograd.grad(0.3 * found, inputs), wanted, strict=True):
        torch.testing.assert_close(one, other, atol=1e-12, rtol=0)
    with torch.no_grad():
        torch.testing.assert_close(linear_cross_entropy(hidden, W, b, labels, rows, smoothing, cap), expected.detach())


@pytest.mark.parametrize("frozen", ["hidden", "W", "b"])
def test_frozen_inputs_get_no_gradient(frozen):
    (hidden, W, b), labels = draw(bias=True)
    named = {"hidden": hidden, "W": W, "b": b}
    named[frozen].requires_grad_(False)
    linear_cross_entropy(hidden, W, b, labels, 5).backward()
    assert {name for name, t in named.items() if t.grad is None} == {frozen}


def test_no_rows_have_no_loss_and_no_gradient():
    (hidden, W, b), labels = draw(bias=True)
    loss = linear_cross_entropy(hidden[:0], W, b, labels[:0], 5)
    loss.backward()
    assert float(loss.detach()) == 0 and not W.grad.any() and not b.grad.any()


def test_certain_and_hopeless_labels_stay_finite():
    W, labels = torch.eye(3, dtype=torch.float32), torch.tensor([0, 1])
    hidden = torch.tensor([[300.0, 0.0, 0.0], [300.0, 0.0, 0.0]], requires_grad=True)
    loss = linear_cross_entropy(hidden, W, None, labels, 1)
    loss.backward()
    assert float(loss.detach()) == 300 and torch.equal(hidden.grad, torch.tensor([[0.0, 0, 0], [1, -1, 0]]))


def test_half_precision_adds_up_in_float32():
    (hidden, W, _), labels = draw(bias=False, dtype=torch.bfloat16)
    found = linear_cross_entropy(hidden, W, None, labels, 5)
    expected = whole(*(t.detach().double() for t in (hidden, W)), None, labels, 0.0, None)
    found.backward()
    assert found.dtype == torch.float32 and W.grad.dtype == torch.bfloat16
    assert float(found.detach()) == pytest.approx(float(expected), rel=0.01)


def test_the_largest_tensor_is_a_chunk_or_a_weight():
    hidden, W = torch.randn(211, 3, requires_grad=True), torch.randn(499, 3, requires_grad=True)
    with LargestTensor() as largest:
        linear_cross_entropy(hidden, W, None, torch.zeros(211, dtype=torch.long), 7).backward()
    assert largest.numbers == 7 * 499


def test_a_second_backward_pass_is_refused():
    (hidden, W, _), labels = draw(bias=False)
    loss = linear_cross_entropy(hidden, W, None, labels, 5)
    loss.backward(retain_graph=True)
    with pytest.raises(WeftError, match="compute the loss again"):
        loss.backward()
