"""One axis in a process of its own: seconds at each size, the sizes taking turns; or the peak of memory at each size.

The two are measured in different processes: for exact peaks freed memory returns to the kernel at once, so that calls
take their pages anew, which must not count as time. Sizes that are called `once` (files of text) have time, processor
time and memory from that one call, each size in a process of its own.
"""

from __future__ import annotations

import ctypes
import gc
import statistics
import time
from typing import Any

from weft.bench.contest import Work
from weft.bench.growth.axes import AXES
from weft.bench.running.disturbance import busy_seconds, cores_of_others
from weft.bench.running.memory import extra_memory

MOST, FEWEST = 25, 5  # calls per size that are timed
ENOUGH, LONGEST = 1.0, 4.0  # seconds per size: enough with the fewest calls, and the end in any case


def axis_work(axis: str, sizes: list[int], what: str) -> Work:
    """Work whose one call measures the whole axis: `seconds N`, `bytes N` or both for each size N."""
    measures = {"seconds": measure_seconds, "bytes": measure_bytes, "both": measure_both}
    return Work(lambda: measures[what](axis, sizes))


def measure_seconds(axis: str, sizes: list[int]) -> dict[str, float]:
    """The median of up to 25 calls after one that warms up; the sizes take turns, so that all meet the same noise.

    `others`: the cores that other programs used meanwhile.
    """
    own = AXES[axis]
    calls: dict[int, Any] = {size: own.make(size) for size in sizes}
    times: dict[int, list[float]] = {size: [] for size in sizes}
    spent = dict.fromkeys(sizes, 0.0)
    for call in calls.values():
        call()
    busy, own_time, begin = busy_seconds(), time.process_time(), time.perf_counter()
    for _ in range(MOST):
        for size, call in calls.items():
            if spent[size] < (ENOUGH if len(times[size]) >= FEWEST else LONGEST):
                start = time.perf_counter()
                given = call()
                taken = time.perf_counter() - start
                spent[size] += taken
                times[size].append(float(given) if own.in_call else taken)
    now = busy_seconds()
    known = None if busy is None or now is None else now - busy
    others = cores_of_others(known, time.process_time() - own_time, time.perf_counter() - begin)
    medians = {f"seconds {size}": statistics.median(seconds) for size, seconds in times.items()}
    return medians | ({} if others is None else {"others": others})


def measure_bytes(axis: str, sizes: list[int]) -> dict[str, float]:
    """The peak of the second call at each size: the first has buffers and optimizer states that are made once."""
    found = {}
    for size in sizes:
        call = AXES[axis].make(size)
        call()
        give_back_freed_memory()
        found[f"bytes {size}"] = float(extra_memory(call))
        del call
    return found


def give_back_freed_memory() -> None:
    """Free memory inside the heap returns to the kernel too; a call that used it again would seem to take none."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's; others have none
    if trim is not None:
        trim(0)


def measure_both(axis: str, sizes: list[int]) -> dict[str, float]:
    """Seconds, processor seconds and peak of one call at each size, after a tiny one for what is loaded once."""
    own = AXES[axis]
    own.make(own.tiny[0])()
    found = {}
    for size in sizes:
        call = own.make(size)
        start, used = time.perf_counter(), time.process_time()
        found[f"bytes {size}"] = float(extra_memory(call))
        found[f"seconds {size}"] = time.perf_counter() - start
        found[f"processor seconds {size}"] = time.process_time() - used
    return found
