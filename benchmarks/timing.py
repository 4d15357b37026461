"""Shared by the benchmarks: fair timing of contestants, extra memory, growth with length, tables.

Time: contestants take turns within one run, in an order that rotates, so that a noisy or throttling machine affects all
of them alike. Noise only ever adds time, so `best` (the least of the rounds) is nearest to what the code needs, and
`ratio` compares bests; `paired`, the median over rounds of (contestant / reference in the same round), is the second
opinion: where the two disagree, the machine was too noisy for that row to mean much. Threads are bound to cores
(`begin`), because on a busy machine the kernel may put two of them on one core, where each waits out the other's time
slice at every barrier (seen: 100 x). With one thread the counter is the process's own processor time, which ignores the
neighbors: `--threads 1` gives usable ratios even on a busy machine.

Memory: the peak of resident memory (VmHWM of /proc/self/status) during one call, less what was resident before it.
The kernel counts it, so it includes what torch's own profiler cannot see (MKL and OpenMP buffers), and counts pages
that were touched, not those only allocated. `echo 5 > /proc/self/clear_refs` resets the peak to the present, so one
process can measure many calls. Measurements run in a fresh process (`fresh`) in which every block of 64 kB or more is
a mapping of its own: what is freed goes back to the kernel at once, and no call benefits from what an earlier one left
in the heap. Where the kernel has no such file, the peak of the whole process (getrusage) is used.
"""

from __future__ import annotations

import gc
import json
import math
import multiprocessing
import os
import platform
import resource
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch

MEGABYTE = 1e6
Call = Callable[[], Any]


def begin(threads: int | None = None) -> None:
    """Restart the script with threads bound to cores, unless they are; then set their number."""
    if "OMP_PROC_BIND" not in os.environ:
        os.environ["OMP_PROC_BIND"] = "true"
        os.execv(sys.executable, [sys.executable, *sys.argv])
    if threads:
        torch.set_num_threads(threads)


def counter() -> float:
    """Seconds: wall time, or with one thread the process's own CPU time."""
    return time.process_time() if torch.get_num_threads() == 1 else time.perf_counter()


def interleave(contestants: dict[str, Call], seconds: float = 10.0, most: int = 15, warm: bool = True) -> Rounds:
    """Time the contestants in turns until `seconds` are spent or `most` rounds done; always at least one round."""
    if warm:
        for call in contestants.values():
            call()
    names, times = list(contestants), {name: [] for name in contestants}
    enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        started = time.perf_counter()
        done = 0
        while done < most:
            for name in names[done % len(names) :] + names[: done % len(names)]:
                start = counter()
                contestants[name]()
                times[name].append(counter() - start)
            done += 1
            spent = time.perf_counter() - started
            if spent + spent / done > seconds:
                break
    finally:
        if enabled:
            gc.enable()
    return Rounds(times)


class Rounds:
    """Seconds of each contestant in each round."""

    def __init__(self, times: dict[str, list[float]]) -> None:
        self.times = times

    def best(self, name: str) -> float:
        """The contestant's least time."""
        return min(self.times[name])

    def median(self, name: str) -> float:
        """The contestant's median time."""
        return statistics.median(self.times[name])

    def ratio(self, name: str, reference: str) -> float:
        """Best time as a multiple of the reference's best."""
        return self.best(name) / self.best(reference)

    def paired(self, name: str, reference: str) -> float:
        """The median over rounds of the time as a multiple of the reference's in the same round."""
        return statistics.median(a / b for a, b in zip(self.times[name], self.times[reference], strict=True))

    def __len__(self) -> int:
        return len(next(iter(self.times.values())))


def exponent(lengths: Sequence[int], seconds: Sequence[float]) -> float:
    """p of the best fit seconds = c N^p: the slope of log seconds over log N, by least squares."""
    if len(lengths) < 2:
        return math.nan
    x, y = [math.log(n) for n in lengths], [math.log(s) for s in seconds]
    return statistics.linear_regression(x, y).slope


def extra_memory(call: Call) -> int:
    """Peak bytes that `call` adds to what is resident now, its result included; see the head of this file."""
    gc.collect()
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
        before = _status("VmRSS")
        result = call()
        peak = _status("VmHWM")
    except OSError:
        unit = 1 if sys.platform == "darwin" else 1024
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
        result = call()
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    del result
    return max(0, peak - before)


def _status(field: str) -> int:
    for line in Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise OSError(f"no {field} in /proc/self/status")


def fresh(function: Callable[..., Any], *arguments: Any) -> Any:
    """`function(*arguments)` in a new process whose freed memory returns to the kernel at once."""
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


def machine() -> dict[str, Any]:
    """What the numbers were measured on."""
    name = platform.processor()
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        name = next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        pass
    return {
        "processor": name,
        "capability": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "load": os.getloadavg()[0],
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Plain text, first column to the left and the others to the right."""
    lines = [list(headings), *(list(row) for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(headings))]
    return "\n".join(
        "  ".join(
            cell.ljust(w) if i == 0 else cell.rjust(w) for i, (cell, w) in enumerate(zip(line, widths, strict=True))
        )
        for line in lines
    )


def limit(what: str, value: float, most: float, rounds: int | None = None) -> dict[str, Any]:
    """A target and whether it was reached; a benchmark reports it and never fails for it."""
    return {"what": what, "value": value, "limit": most, "reached": bool(value <= most), "rounds": rounds}


def report(results: list[dict[str, Any]], limits: list[dict[str, Any]], text: str, as_json: bool) -> None:
    """Print one JSON value, or the text and the limits."""
    if as_json:
        print(json.dumps({"results": results, "limits": limits, "machine": machine()}, indent=1))
        return
    print(text)
    print()
    for found in limits:
        state = "reached" if found["reached"] else "MISSED"
        sure = f"; {found['rounds']} rounds only, so uncertain" if found["rounds"] in (1, 2) else ""
        print(f"{state:8} {found['what']}: {found['value']:.3g} (limit {found['limit']:g}{sure})")
    print("\n" + ", ".join(f"{key} {value}" for key, value in machine().items()))
