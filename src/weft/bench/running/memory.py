"""Peak memory of a call: the kernel's own count of resident pages, above what was resident before.

VmHWM of /proc/self/status, which `echo 5 > /proc/self/clear_refs` resets to the present. It includes what torch's own
profiler cannot see (MKL and OpenMP buffers) and counts pages that were touched, not those only allocated.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import resource
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from weft.bench.contest import Work

STEPS = 3


def extra_memory(call: Callable[[], Any]) -> int:
    """Peak bytes that `call` adds to what is resident now, its result included."""
    gc.collect()
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
        before = status_bytes("VmRSS")
        result = call()
        peak = status_bytes("VmHWM")
    except OSError:
        unit = 1 if sys.platform == "darwin" else 1024
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
        result = call()
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    del result
    return max(0, peak - before)


def status_bytes(field: str, process: str = "self") -> int:
    """A field of a process's status that counts memory, such as VmRSS or VmHWM."""
    for line in Path(f"/proc/{process}/status").read_text(encoding="ascii", errors="replace").splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise OSError(f"no {field} in /proc/{process}/status")


def peak_memory(make: Callable[[], Callable[[], Any]]) -> Work:
    """Work whose calls are timed as usual, and whose values have the peak of making it and of its first few calls."""
    kept: list[Callable[[], Any]] = []

    def begin() -> None:
        kept.append(make())
        for _ in range(STEPS):
            kept[0]()

    peak = extra_memory(begin)

    def run() -> dict[str, float]:
        kept[0]()
        return {"peak MB": peak / 1e6}

    return Work(run)


def in_fresh_process(function: Callable[..., Any], *arguments: Any) -> Any:
    """`function(*arguments)` in a new process whose freed memory returns to the kernel at once.

    Every block of 64 kB or more is a mapping of its own there, so no call benefits from what an earlier one left.
    """
    setting = "MALLOC_MMAP_THRESHOLD_"
    before = os.environ.get(setting)
    os.environ[setting] = "65536"
    try:
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            return pool.apply(function, arguments)
    finally:
        if before is None:
            del os.environ[setting]
        else:
            os.environ[setting] = before
