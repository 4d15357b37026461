"""Native kernels of parts: as exact as torch's in float32, judged by the readable definitions in float64."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch.autograd import forward_ad

from largest_tensor import LargestTensor
from weft.foundation.threads import number_of_threads
from weft.parts import native
from weft.parts.attention_context import AttentionContext
from weft.parts.feedforward import gelu_tanh
from weft.parts.kernels import explicit, fused
from weft.parts.masks import Causal
from weft.parts.norms import layer_norm
from weft.parts.scores import ScaledDot

B, T, D = 3, 5, 37
# Prime numbers of elements, below and above what one thread takes alone.
COUNTS = (1, 13, 4099, 20011)

if native.kernels() is None:
    pytest.skip("no C compiler", allow_module_level=True)


def draw(*shape, scale=1.0, seed=3):
    return scale * torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def gradients(call, slope, *tensors):
    """The output and the gradients of all tensors, in float64."""
    inputs = [t.detach().clone().requires_grad_() for t in tensors]
    y = call(*inputs)
    found = torch.autograd.grad(y, inputs, slope.to(y.dtype))
    return [t.detach().double() for t in (y, *found)]


def norm_of(x, gamma, beta=None):
    return layer_norm(x, gamma, beta)


def torch_norm(x, gamma, beta=None):
    return F.layer_norm(x, gamma.shape, gamma, beta, 1e-5)


CASES = {
    "gelu": (gelu_tanh, lambda x: F.gelu(x, approximate="tanh"), (draw(B, T, D, scale=3),)),
    "norm": (norm_of, torch_norm, (draw(B, T, D) + 2, draw(D, seed=5), draw(D, seed=7))),
    "norm without bias": (norm_of, torch_norm, (draw(B, T, D) - 3, draw(D, seed=5))),
    "norm of a vector": (norm_of, torch_norm, (draw(D), draw(D, seed=5), draw(D, seed=7))),
    "norm of many rows": (norm_of, torch_norm, (draw(521, D), draw(D, seed=5), draw(D, seed=7))),
}


@pytest.mark.parametrize("case", CASES)
def test_outputs_and_gradients_are_those_of_the_readable_definition(case):
    own, readable, tensors = CASES[case]
    slope = draw(*tensors[0].shape, seed=11)
    exact = gradients(readable, slope, *tensors)
    assert all(torch.equal(a, b) for a, b in zip(gradients(own, slope, *tensors), exact, strict=True))
    singles = [t.float() for t in tensors]
    exact = gradients(readable, slope.float(), *(t.double() for t in singles))
    found = gradients(own, slope.float(), *singles)
    assert not torch.equal(found[0], exact[0])
    for one, other in zip(found, exact, strict=True):
        torch.testing.assert_close(one, other, atol=4e-6 * float(other.abs().max()), rtol=0)


def split_heads(qkv, H):
    return [part.unflatten(-1, (H, -1)).transpose(1, 2) for part in qkv.chunk(3, -1)]


def attend(qkv, H=3, scale=0.3):
    """Causal attention as `fused` computes it, of queries, keys and values in one: [B, T, 3 H K] -> [B, T, H K]."""
    context = AttentionContext.of(qkv, Causal())
    return fused(*split_heads(qkv, H), context, ScaledDot(scale)).transpose(1, 2).flatten(2)


@pytest.mark.skipif(not native.kernels().weft_attention_is_fast(), reason="torch's attention is as fast here")
@pytest.mark.parametrize(("T", "K"), [(131, 16), (197, 48), (256, 64)])
def test_attention_of_short_texts_is_that_of_the_readable_definition(T, K):
    qkv, slope = draw(2, T, 9 * K), draw(2, T, 3 * K, seed=5).float()
    single = qkv.float()
    assert native.suits_attention(*split_heads(single, 3))
    exact = gradients(attend, slope, single.double())
    found = gradients(attend, slope, single)
    for one, other in zip(found, exact, strict=True):
        assert not torch.equal(one, other)
        torch.testing.assert_close(one, other, atol=3e-6 * float(other.abs().max()), rtol=0)
    explained, _ = explicit(*split_heads(single.double(), 3), AttentionContext.of(qkv, Causal()), ScaledDot(0.3))
    torch.testing.assert_close(exact[0], explained.transpose(1, 2).flatten(2), atol=1e-10, rtol=0)


@pytest.mark.skipif(not native.kernels().weft_attention_is_fast(), reason="torch's attention is as fast here")
def test_attention_sees_nothing_of_later_tokens_and_of_other_rows():
    T, K = 197, 16
    qkv, slope = draw(2, T, 9 * K).float(), torch.zeros(2, T, 3 * K)
    slope[0, 149:151] = 1
    y, dqkv = gradients(attend, slope, qkv)
    assert dqkv[0, :150].any() and not dqkv[0, 151:].any() and not dqkv[1].any()
    changed = qkv.clone()
    changed[0, 151:], changed[1] = 1e4, -3
    again, after = gradients(attend, slope, changed)
    assert torch.equal(again[0, :151], y[0, :151]) and torch.equal(after[0, :151], dqkv[0, :151])
    shorter = gradients(attend, slope[:1, :151], qkv[:1, :151].contiguous())
    assert torch.equal(shorter[0], y[:1, :151])
    with number_of_threads(2):
        threads = gradients(attend, slope, qkv)
    assert torch.equal(threads[0], y) and torch.equal(threads[1], dqkv)


def test_gelu_of_every_size_of_number():
    x = torch.cat([torch.linspace(-20, 20, 20011), torch.tensor([0.0, -0.0, 1e-30, -1e-30, 1e10, -1e10, 1e20, -1e20])])
    y, dx = gradients(gelu_tanh, torch.ones(x.shape), x)
    exact = x.double().requires_grad_()
    F.gelu(exact, approximate="tanh").sum().backward()
    # x s with s = 1 / (1 + e^(-2u)) keeps its digits where x/2 (1 + tanh u) loses them all.
    small = torch.sigmoid(2 * 0.7978845608028654 * (x.double() + 0.044715 * x.double() ** 3)) * x.double()
    torch.testing.assert_close(y, small, rtol=3e-5, atol=1e-36)
    torch.testing.assert_close(dx, exact.grad, rtol=2e-6, atol=2e-6)
    assert gelu_tanh(torch.tensor([float("nan"), float("inf")])).isnan().tolist() == [True, False]


@pytest.mark.parametrize("count", COUNTS)
def test_an_element_of_gelu_is_the_same_wherever_it_stands(count):
    x = draw(count, scale=3).float()
    y, dx = gradients(gelu_tanh, torch.ones(count), x)
    for first in (0, count // 2, count - 1):
        alone = gradients(gelu_tanh, torch.ones(count - first), x[first:].clone())
        assert torch.equal(alone[0], y[first:]) and torch.equal(alone[1], dx[first:])


def test_threads_and_company_change_no_bit_of_a_norm():
    x, gamma, beta, slope = (draw(*s, seed=n).float() for n, s in enumerate(((521, D), (D,), (D,), (521, D))))
    found = gradients(norm_of, slope, x, gamma, beta)
    with number_of_threads(2):
        again = gradients(norm_of, slope, x, gamma, beta)
    assert all(torch.equal(a, b) for a, b in zip(found, again, strict=True))
    some = gradients(norm_of, slope[7:18], x[7:18].clone(), gamma, beta)
    assert torch.equal(some[0], found[0][7:18]) and torch.equal(some[1], found[1][7:18])


@pytest.mark.parametrize("frozen", [0, 1, 2])
def test_frozen_inputs_of_a_norm_get_no_gradient(frozen):
    tensors = [draw(*s).float().requires_grad_() for s in ((T, D), (D,), (D,))]
    tensors[frozen].requires_grad_(False)
    norm_of(*tensors).sum().backward()
    assert [n for n, t in enumerate(tensors) if t.grad is None] == [frozen]


@pytest.mark.parametrize("case", ["gelu", "norm"])
def test_second_derivatives_are_those_of_the_readable_definition(case):
    own, readable, tensors = CASES[case]
    found = []
    for call in (own, readable):
        inputs = [t.float().requires_grad_() for t in tensors]
        (first,) = torch.autograd.grad(call(*inputs).square().sum(), inputs[0], create_graph=True)
        found.append(torch.autograd.grad(first.square().sum(), inputs[0])[0])
    torch.testing.assert_close(*found, rtol=1e-3, atol=1e-3)


def test_other_tensors_take_the_readable_way():
    x = torch.randn(T, D)
    assert native.suits(x) and native.suits(torch.nn.Parameter(x))
    others = (x.double(), x.bfloat16(), x.t(), x.to("meta"), torch.empty(2, dtype=torch.int64))
    assert not any(native.suits(other) for other in others)
    assert torch.equal(torch.func.vmap(gelu_tanh)(x), F.gelu(x, approximate="tanh"))
    with LargestTensor():  # who watches torch's operations sees them all
        assert not native.suits(x)


def test_a_view_of_a_gradient_is_read_in_order():
    x = draw(T, D).float()
    wide = draw(D, T, seed=5).float().t()
    torch.testing.assert_close(
        gradients(gelu_tanh, wide, x)[1], gradients(gelu_tanh, wide.contiguous(), x)[1], rtol=0, atol=0
    )


def test_no_rows():
    x = torch.empty(0, D, requires_grad=True)
    layer_norm(gelu_tanh(x), torch.ones(D, requires_grad=True), None).sum().backward()
    assert x.grad.shape == (0, D)


def linear(x, weight, bias=None):
    return native.linear(x, weight, bias) if native.suits_linear(x, weight, bias) else F.linear(x, weight, bias)


# Rows, columns and depth that are no multiple of a tile, and of several tiles with what is left; over 256 rows dW is
# added up in pieces; over 2^21 numbers of x its rows pass in blocks; depths of over 1,536 are walked in pieces.
LINEAR_SIZES = [(67, 5, 3), (83, 37, 53), (269, 71, 131), (521, 64, 32), (541, 5, 4099), (67, 1601, 37)]
fast_linear = pytest.mark.skipif(not native.kernels().weft_linear_is_fast(), reason="torch's products are faster here")


@fast_linear
@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize(("M", "N", "K"), LINEAR_SIZES)
def test_linear_maps_are_torchs(M, N, K, biased):
    tensors = [draw(M, K).float(), draw(N, K, seed=5).float(), *([draw(N, seed=7).float()] if biased else [])]
    slope = draw(M, N, seed=11).float()
    assert native.suits_linear(*tensors, *([] if biased else [None]))
    found = gradients(linear, slope, *tensors)
    exact = gradients(linear, slope, *(t.double() for t in tensors))
    for one, other in zip(found, exact, strict=True):
        assert not torch.equal(one, other)
        torch.testing.assert_close(one, other, atol=4e-6 * float(other.abs().max()), rtol=0)


@fast_linear
def test_no_other_row_no_place_and_no_thread_changes_a_row_of_a_linear_map():
    x, weight, bias = draw(211, 53).float(), draw(71, 53, seed=5).float(), draw(71, seed=7).float()
    slope = draw(211, 71, seed=11).float()
    y, dx, dweight, dbias = gradients(linear, slope, x, weight, bias)
    for first, last in ((0, 64), (5, 101), (130, 211)):
        part = gradients(linear, slope[first:last], x[first:last], weight, bias)
        assert torch.equal(part[0], y[first:last]) and torch.equal(part[1], dx[first:last])
    for threads in (1, 2, 3):
        with number_of_threads(threads):
            again = gradients(linear, slope, x, weight, bias)
        assert all(torch.equal(a, b) for a, b in zip(again, (y, dx, dweight, dbias), strict=True))


@fast_linear
def test_linear_maps_have_gradients_of_what_is_asked_for_and_second_derivatives():
    x, weight, bias = draw(67, 53).float(), draw(37, 53, seed=5).float(), draw(37, seed=7).float()
    for learned in ((True, False, False), (False, True, False), (False, False, True), (True, False, True)):
        own = [t.clone().requires_grad_(wanted) for t, wanted in zip((x, weight, bias), learned, strict=True)]
        native.linear(*own).square().sum().backward()
        assert [t.grad is not None for t in own] == list(learned)
    own = [t.clone().requires_grad_() for t in (x, weight, bias)]
    slopes = torch.autograd.grad(native.linear(*own).square().sum(), own, create_graph=True)
    second = torch.autograd.grad(sum(s.square().sum() for s in slopes), own)
    wide = [t.detach().double().requires_grad_() for t in own]
    exact = torch.autograd.grad(F.linear(*wide).square().sum(), wide, create_graph=True)
    for one, other in zip(second, torch.autograd.grad(sum(s.square().sum() for s in exact), wide), strict=True):
        torch.testing.assert_close(one.double(), other, rtol=0, atol=1e-5 * float(other.abs().max()))


@fast_linear
def test_gradients_of_weights_are_added_to_what_is_there():
    dy, x, dW, db = draw(67, 37).float(), draw(67, 53, seed=5).float(), draw(37, 53, seed=7), draw(37, seed=11)
    exact, exact_b = dW + dy.double().T @ x.double(), db + dy.double().sum(0)
    found, found_b = dW.float(), db.float()
    native.linear_to_weights(found, dy, x, found_b, add=True)
    torch.testing.assert_close(found.double(), exact, rtol=0, atol=4e-6 * float(exact.abs().max()))
    torch.testing.assert_close(found_b.double(), exact_b, rtol=0, atol=4e-6 * float(exact_b.abs().max()))


@fast_linear
def test_products_are_added_to_what_is_there():
    x, weight, dy = draw(67, 53).float(), draw(37, 53, seed=5).float(), draw(67, 37, seed=11).float()
    for there, found, exact in (
        (draw(67, 37, seed=7).float(), lambda y: native.linear_into(y, x, weight, add=True), x @ weight.T),
        (draw(67, 53, seed=7).float(), lambda y: native.linear_to_x(y, dy, weight, add=True), dy @ weight),
    ):
        torch.testing.assert_close(found(there.clone()), there + exact, rtol=0, atol=1e-5)


@fast_linear
def test_few_rows_other_types_and_autocast_stay_with_torch():
    x, weight = draw(67, 53).float(), draw(37, 53).float()
    assert native.suits_linear(x[:16], weight, None)
    assert not native.suits_linear(x[:15], weight, None)
    assert not native.suits_linear(x.double(), weight.double(), None)
    assert not native.suits_linear(x.T, weight, None)
    assert not native.suits_linear(x, weight, torch.ones(1)) and not native.suits_linear(x, weight[:0], None)
    with forward_ad.dual_level():
        assert not native.suits_linear(x, weight, None)
    dy = draw(67, 37).float()
    assert native.suits_slopes(dy, x, weight)
    for wrong in ((dy[:66], x, weight), (dy, x[:, :52].contiguous(), weight), (dy, x, weight[:36])):
        assert not native.suits_slopes(*wrong)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert not native.suits_linear(x, weight, None)


@fast_linear
def test_a_row_of_a_linear_map_is_the_same_alone_and_without_gradients():
    x, weight, bias = draw(67, 53).float(), draw(37, 53, seed=5).float(), draw(37, seed=7).float()
    y = native.linear(x.requires_grad_(), weight, bias)
    with torch.no_grad():
        assert torch.equal(native.linear(x, weight, bias), y)
        assert all(torch.equal(native.linear(x[n : n + 1], weight, bias), y[n : n + 1]) for n in range(67))
        assert native.linear(x[:0], weight, bias).shape == (0, 37)
