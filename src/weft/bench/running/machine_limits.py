"""What the machine allows: float32 products, reading memory, int8 products; a process that takes turns too."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from weft.bench.contest import Work
from weft.parts import native

SQUARES = ((1024, 1024, 1024), (2048, 2048, 2048))
TINY = ((32, 32, 32),)
READ_BYTES = 256 * 2**20  # more than any cache
TRIES = 3


def _best_rate(call: Callable[[], Any], amount: float) -> float:
    """`amount` per second, in units of 10^9, of the fastest of a few calls."""
    best = float("inf")
    for _ in range(TRIES):
        start = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - start)
    return amount / best / 1e9


def _products(shapes: Iterable[tuple[int, ...]]) -> dict[str, Callable[[], float]]:
    """float32 GFLOP/s of each product (M, N, K), 2 operations per multiply-add, by torch or by Weft: the faster."""

    def rate(M: int, N: int, K: int) -> float:
        x, W = torch.randn(M, K), torch.randn(N, K)
        y = torch.empty(M, N)
        best = _best_rate(lambda: torch.mm(x, W.T, out=y), 2.0 * M * N * K)
        if native.suits_linear(x, W, None):
            with torch.no_grad():
                best = max(best, _best_rate(lambda: native.linear(x, W, None), 2.0 * M * N * K))
        return best

    return {f"float32 GFLOP/s {M} x {N} x {K}": lambda s=(M, N, K): rate(*s) for M, N, K in shapes}  # type: ignore[misc]


def _int8_rate(M: int, N: int, K: int) -> float:
    """int8 products with int32 sums in GOP/s, 2 operations per multiply-add."""
    made = torch.Generator().manual_seed(0)
    a = torch.randint(-127, 128, (M, K), dtype=torch.int8, generator=made)
    b = torch.randint(-127, 128, (N, K), dtype=torch.int8, generator=made)
    return _best_rate(lambda: torch._int_mm(a, b.T), 2.0 * M * N * K)


def measure_limits(shapes: Sequence[Sequence[int]] = (), quick: bool = False) -> Work:
    """Work whose call gives rates by name: those of single products, and the best of all as `float32 GFLOP/s`."""
    own = TINY if quick else (*SQUARES, *(tuple(shape) for shape in shapes))
    big = torch.ones((2**20 if quick else READ_BYTES) // 4)
    products = _products(own)

    def run() -> dict[str, float]:
        rates = {name: rate() for name, rate in products.items()}
        ways: tuple[Callable[[], Any], ...] = (big.sum, big.max, lambda: torch.dot(big, big))
        return {
            "float32 GFLOP/s": max(rates.values()),
            "memory GB/s": max(_best_rate(way, 4.0 * big.numel()) for way in ways),
            "int8 GOP/s": _int8_rate(*own[0]),
            **rates,
        }

    return Work(run)
