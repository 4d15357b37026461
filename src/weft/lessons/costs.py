"""Costs: seconds and peak memory of a call, and the exponent with which a cost grows."""

from __future__ import annotations

import contextlib
import ctypes
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch

from weft.bench.running.memory import extra_memory
from weft.foundation.kept_memory import LARGEST_KEPT, M_MMAP_THRESHOLD

SMALL_BLOCK = 65_536  # bytes; larger ones are mappings of their own while memory is measured
LAST = 4  # sizes that an exponent is fitted to


class Cost(NamedTuple):
    """Of one call: the least seconds of a few, and the peak of memory beyond what was there, in MiB."""

    seconds: float
    mib: float


def cost_of(call: Callable[[], Any], repeats: int = 2) -> Cost:
    """Time a call a few times, then measure its memory once; without gradients."""
    found = []
    with torch.no_grad():
        for _ in range(repeats):
            start = time.perf_counter()
            call()
            found.append(time.perf_counter() - start)
        with _freed_at_once():
            return Cost(min(found), extra_memory(call) / 2**20)


def exponent(sizes: Sequence[float], values: Sequence[float]) -> float:
    """The slope of log value against log size, by least squares over the last sizes."""
    x, y = (torch.tensor(some[-LAST:], dtype=torch.float64).clamp(min=1e-9).log() for some in (sizes, values))
    return float(((x - x.mean()) * (y - y.mean())).sum() / (x - x.mean()).square().sum())


@contextlib.contextmanager
def _freed_at_once() -> Iterator[None]:
    """Freed blocks go back to the kernel, so that a call cannot use what an earlier one left; with glibc."""
    library = ctypes.CDLL(None) if sys.platform == "linux" else None
    if library is None or not hasattr(library, "malloc_trim"):
        yield
        return
    library.mallopt(M_MMAP_THRESHOLD, SMALL_BLOCK)
    library.malloc_trim(0)
    try:
        yield
    finally:
        library.mallopt(M_MMAP_THRESHOLD, LARGEST_KEPT)
