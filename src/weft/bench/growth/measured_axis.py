"""One axis in a process of its own: seconds at each size, the sizes taking turns; or the peak of memory at each size.

The two are measured in different processes: for exact peaks freed memory returns to the kernel at once, so that calls
take their pages anew, which must not count as time.
"""

from __future__ import annotations

import time
from typing import Any

from weft.bench.contest import Work
from weft.bench.growth.axes import AXES
from weft.bench.running.memory import extra_memory

MOST, ENOUGH = 5, 4.0  # calls per size, and seconds after which no further one is made


def axis_work(axis: str, sizes: list[int], what: str) -> Work:
    """Work whose one call measures the whole axis: `seconds N` or `bytes N` for each size N."""
    return Work(lambda: (measure_seconds if what == "seconds" else measure_bytes)(axis, sizes))


def measure_seconds(axis: str, sizes: list[int]) -> dict[str, float]:
    """The least of a few calls after one that warms up, since noise only adds."""
    own = AXES[axis]
    calls: dict[int, Any] = {size: own.make(size) for size in sizes}
    times: dict[int, list[float]] = {size: [] for size in sizes}
    for call in calls.values():
        call()
    for _ in range(MOST):
        for size, call in calls.items():
            if sum(times[size]) < ENOUGH:
                start = time.perf_counter()
                given = call()
                times[size].append(float(given) if own.in_call else time.perf_counter() - start)
    return {f"seconds {size}": min(seconds) for size, seconds in times.items()}


def measure_bytes(axis: str, sizes: list[int]) -> dict[str, float]:
    """The peak of one call; one of the smallest size comes first, for buffers that libraries make once."""
    make = AXES[axis].make
    make(sizes[0])()
    return {f"bytes {size}": float(extra_memory(make(size))) for size in sizes}
