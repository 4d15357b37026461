from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.nn.functional as F

from weft.foundation.threads import number_of_threads
from weft.parts import expert_products
from weft.parts.expert_products import run_experts
from weft.parts.experts import Experts


def swiglu(hidden):
    gate, up = hidden.chunk(2, dim=-1)
    return F.silu(gate) * up


def one_by_one(x, up, down, sizes, activate):
    pieces = zip(x.split(sizes), up, down, strict=True)
    return torch.cat([F.linear(activate(F.linear(rows, W_1)), W_2) for rows, W_1, W_2 in pieces])


def tensors(sizes, D=5, F_=7, seed=0):
    draw = torch.Generator().manual_seed(seed)
    shapes = ((sum(sizes), D), (len(sizes), 2 * F_, D), (len(sizes), D, F_))
    return [torch.randn(*shape, generator=draw, dtype=torch.float64) for shape in shapes]


@pytest.fixture
def in_threads(monkeypatch):
    """Two threads, for experts of any size; gives an activation, and the names of the threads that called it."""
    used = set()
    monkeypatch.setattr(expert_products, "_many_small", lambda *_: True)

    def activate(hidden):
        used.add(threading.current_thread().name)
        return swiglu(hidden)

    with number_of_threads(2):
        yield activate, used


def gradients(run, x, up, down, sizes, activate):
    given = [t.clone().requires_grad_() for t in (x, up, down)]
    y = run(*given, sizes, activate)
    slope = torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view_as(y)
    return y.detach(), *torch.autograd.grad(y, given, slope)


def test_outputs_and_gradients_are_those_of_a_product_per_expert():
    sizes = [3, 0, 11, 1, 2]
    x, up, down = tensors(sizes)
    expected = gradients(one_by_one, x, up, down, sizes, swiglu)
    for found, right in zip(gradients(run_experts, x, up, down, sizes, swiglu), expected, strict=True):
        torch.testing.assert_close(found, right, atol=1e-12, rtol=0)


def test_threads_compute_the_same(in_threads):
    sizes = [3, 0, 11, 1, 2]
    x, up, down = tensors(sizes)
    activate, used = in_threads
    expected = gradients(one_by_one, x, up, down, sizes, swiglu)
    for found, right in zip(gradients(run_experts, x, up, down, sizes, activate), expected, strict=True):
        torch.testing.assert_close(found, right, atol=1e-12, rtol=0)
    assert used and all(name.startswith("weft-experts") for name in used)


def test_a_compiler_sees_a_product_per_expert(monkeypatch):
    sizes = [3, 0, 2]
    x, up, down = tensors(sizes)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    monkeypatch.setattr(expert_products, "_for_each", None)
    torch.testing.assert_close(run_experts(x, up, down, sizes, swiglu), one_by_one(x, up, down, sizes, swiglu))


def test_frozen_experts_have_no_gradient_and_pass_one_on():
    sizes = [2, 3]
    x, up, down = tensors(sizes)
    x.requires_grad_()
    run_experts(x, up, down, sizes, swiglu).sum().backward()
    (expected,) = torch.autograd.grad(one_by_one(x, up, down, sizes, swiglu).sum(), x)
    torch.testing.assert_close(x.grad, expected, atol=1e-12, rtol=0)
    assert up.grad is None and down.grad is None


def test_threads_keep_the_modes_and_the_number_of_threads(in_threads):
    sizes = [3, 1, 2]
    x, up, down = tensors(sizes)
    activate, _ = in_threads
    up.requires_grad_()
    with torch.inference_mode():
        found = run_experts(x, up, down, sizes, activate)
    assert found.is_inference()
    with torch.no_grad():
        assert not run_experts(x, up, down, sizes, activate).requires_grad
    torch.testing.assert_close(found.clone(), one_by_one(x, up, down, sizes, swiglu).detach(), atol=1e-12, rtol=0)
    with ThreadPoolExecutor(1) as later:
        assert torch.get_num_threads() == later.submit(torch.get_num_threads).result() == 2


def test_an_error_in_a_thread_is_raised(in_threads):
    sizes = [1, 1]

    def broken(hidden):
        raise ArithmeticError("broken")

    with pytest.raises(ArithmeticError, match="broken"):
        run_experts(*tensors(sizes), sizes, broken)


def test_autocast_computes_in_its_type():
    torch.manual_seed(0)
    experts, x = Experts(8, 16, 3, 2), torch.randn(2, 5, 8, requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = experts(x)
    y.float().square().sum().backward()
    assert experts.up.grad.dtype == torch.float32 and torch.isfinite(experts.up.grad).all()
    torch.testing.assert_close(y.float(), experts(x), atol=0.1, rtol=0.1)


def test_many_small_experts_run_in_threads_and_few_large_ones_do_not():
    x, up = torch.empty(8192, 256, device="meta"), torch.empty(64, 2048, 256, device="meta")
    assert not expert_products._many_small([128] * 64, x, up, 2)  # not a CPU
    x, up = torch.empty(8192, 256), torch.empty(1, 2048, 256)
    assert expert_products._many_small([128] * 64, x, up, 2)
    assert not expert_products._many_small([128] * 64, x, up, 1)
    assert not expert_products._many_small([2048] * 4, x, up, 2)
    assert not expert_products._many_small([1] * 64, x[:64], up, 2)
