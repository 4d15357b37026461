"""One axis in a process of its own: seconds and peak memory at each size, the sizes taking turns."""

from __future__ import annotations

import time
from typing import Any

from weft.bench.contest import Work
from weft.bench.growth.axes import AXES
from weft.bench.running.memory import extra_memory

MOST, ENOUGH = 5, 4.0  # calls per size, and seconds after which one call is enough


def axis_work(axis: str, sizes: list[int]) -> Work:
    """Work whose one call measures the whole axis: `seconds N` and `bytes N` for each size N."""
    return Work(lambda: measure_axis(axis, sizes))


def measure_axis(axis: str, sizes: list[int]) -> dict[str, float]:
    """The least of a few calls for time, since noise only adds; the peak of one call for memory."""
    own = AXES[axis]
    calls: dict[int, Any] = {size: own.make(size) for size in sizes}
    found: dict[str, float] = {}
    times: dict[int, list[float]] = {size: [] for size in sizes}
    for size, call in calls.items():
        start = time.perf_counter()
        found[f"bytes {size}"] = float(extra_memory(call))
        if time.perf_counter() - start > ENOUGH:
            times[size].append(time.perf_counter() - start)
    for _ in range(MOST):
        for size, call in calls.items():
            if times[size] and sum(times[size]) > ENOUGH:
                continue
            start = time.perf_counter()
            given = call()
            times[size].append(float(given) if own.in_call else time.perf_counter() - start)
    return found | {f"seconds {size}": min(seconds) for size, seconds in times.items()}
