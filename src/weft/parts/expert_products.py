"""The products of experts: rows sorted by expert, each group of rows times its own expert's matrices.

    y_i = W_2 f(W_1 x_i) for every row i of expert e, with W_1 = up[e] [F, D] and W_2 = down[e] [D, F']

One expert after the other, up and down at once: its hidden rows are still in the cache for the way down. Where a CPU
has many experts with few rows each, every thread takes whole experts instead of a part of each product: otherwise
threads wait for each other 2 E times. Both give the same numbers, to rounding.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from weft.parts.products import multiply, slope_of_input, slope_of_weights

Activate = Callable[[Tensor], Tensor]

EXPERTS_PER_THREAD = 8  # with fewer, some thread would be without an expert at the end
LEAST_WORK = 1 << 27  # multiplications below which threads that wake up cost more than they save


def run_experts(x: Tensor, up: Tensor, down: Tensor, sizes: list[int], activate: Activate) -> Tensor:
    """Rows x [N, D], of which expert e has sizes[e], in their order -> y [N, D]; up [E, F, D], down [E, D, F']."""
    if torch.compiler.is_compiling():  # a compiler has threads of its own
        pieces = zip(x.split(sizes), up.unbind(0), down.unbind(0), strict=True)
        return torch.cat([F.linear(activate(F.linear(rows, W_1)), W_2) for rows, W_1, W_2 in pieces])
    if torch.is_autocast_enabled(x.device.type):
        half = torch.get_autocast_dtype(x.device.type)
        x, up, down = x.to(half), up.to(half), down.to(half)
    with torch.autocast(x.device.type, enabled=False):
        y: Tensor = _ExpertProducts.apply(x, up, down, sizes, activate)  # type: ignore[no-untyped-call]
    return y


class _ExpertProducts(torch.autograd.Function):
    """Gradients of all experts are written where they stay: with a product for each, they would be copied once more."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, up: Tensor, down: Tensor, sizes: list[int], activate: Activate) -> Tensor:
        y = x.new_empty(len(x), down.shape[1])
        rows, hidden = x.split(sizes), [x] * len(sizes)
        learns = any(ctx.needs_input_grad)

        def run(e: int) -> None:
            inner = multiply(rows[e], up[e], x.new_empty(sizes[e], up.shape[1]))
            multiply(activate(inner), down[e], out[e])
            if learns:
                hidden[e] = inner

        out = y.split(sizes)
        _for_each(run, sizes, x, up)
        if learns:
            ctx.save_for_backward(x, up, down, *hidden)
            ctx.sizes, ctx.activate = sizes, activate
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        """With a = f(h) and h = W_1 x: dW_2 = dy^T a, da = dy W_2, dh = f'(h) da, dW_1 = dh^T x, dx = dh W_1."""
        x, up, down, *hidden = ctx.saved_tensors
        sizes, activate = ctx.sizes, ctx.activate
        wanted = zip(ctx.needs_input_grad, (x, up, down), strict=False)
        dx, d_up, d_down = (torch.empty_like(t) if needed else None for needed, t in wanted)
        rows, slopes = x.split(sizes), slope.split(sizes)
        dx_rows = None if dx is None else dx.split(sizes)

        def run(e: int) -> None:
            with torch.enable_grad():
                h = hidden[e].detach().requires_grad_()
                a = activate(h)
            if d_down is not None:
                slope_of_weights(slopes[e], a.detach(), d_down[e])
            (dh,) = torch.autograd.grad(a, h, slope_of_input(slopes[e], down[e], torch.empty_like(a)))
            if d_up is not None:
                slope_of_weights(dh, rows[e], d_up[e])
            if dx_rows is not None:
                slope_of_input(dh, up[e], dx_rows[e])

        _for_each(run, sizes, x, up)
        return dx, d_up, d_down, None, None


def _for_each(run: Callable[[int], None], sizes: list[int], x: Tensor, up: Tensor) -> None:
    """`run` for every expert: one after the other, or in threads where there are many small ones."""
    threads = torch.get_num_threads()
    if not _many_small(sizes, x, up, threads):
        for e in range(len(sizes)):
            run(e)
        return
    inference = torch.is_inference_mode_enabled()

    def run_alone(e: int) -> None:
        # Modes belong to a thread, so they are set again.
        with torch.inference_mode(inference), torch.no_grad():
            run(e)

    for _ in _pool(threads).map(run_alone, range(len(sizes))):
        pass


def _many_small(sizes: list[int], x: Tensor, up: Tensor, threads: int) -> bool:
    """Whether threads that take whole experts pay."""
    work = x.numel() * up.shape[1]
    return x.device.type == "cpu" and 1 < threads <= len(sizes) // EXPERTS_PER_THREAD and work >= LEAST_WORK


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    """Threads whose products run on one thread each; kept, because starting them takes time."""
    ready = threading.Barrier(threads + 1)

    def begin() -> None:
        torch.set_num_threads(1)
        ready.wait()

    pool = ThreadPoolExecutor(threads, "weft-experts")
    for _ in range(threads):
        pool.submit(begin)
    ready.wait()
    torch.set_num_threads(threads)  # torch takes the last number set anywhere for threads that begin later
    return pool


if hasattr(os, "register_at_fork"):  # a forked process has none of the threads
    os.register_at_fork(after_in_child=_pool.cache_clear)
