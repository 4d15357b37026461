"""`weft bench growth`: time and memory against length, batch, width, layers, experts, vocabulary and data size.

Each axis is measured in two processes of its own, one for time and one, whose freed memory returns to the kernel at
once, for memory; texts, which take minutes, in one process per size for both. The exponent p of time = c size^p is
fitted by least squares over all sizes; theory's is fitted in the same way to the operations and bytes that these sizes
need. Where the two differ by more than 0.15, the table says why, or that it is not known.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

from weft.bench.contest import BenchOptions, Entry
from weft.bench.growth.axes import AXES, GrowthAxis, sizes_of
from weft.bench.growth.explanations import MEMORY, TIME
from weft.bench.reporting.text import in_seconds
from weft.bench.results import CaseResult, ResultTable, fit_exponent
from weft.bench.running.disturbance import MOST_OTHERS
from weft.bench.running.turns import call_once
from weft.foundation.errors import WeftError

TITLE = "time and memory against size, with fitted exponents p"
HEADINGS = ("what grows", "sizes", "time", "p", "theory", "memory", "p", "theory", "law")
APART = 0.15  # exponents that differ by more are explained
FRESH = {"MALLOC_MMAP_THRESHOLD_": "65536"}
Report = Callable[[str], None]


def run(options: BenchOptions, report: Report) -> CaseResult:
    """Measure the axes asked for."""
    for size in options.sizes:
        if not any(size in name for name in AXES):
            raise WeftError(f"there is no axis {size!r}: choose from {', '.join(AXES)}")
    chosen = [axis for name, axis in AXES.items() if not options.sizes or any(size in name for size in options.sizes)]
    chosen = [axis for axis in chosen if axis.name.startswith("batch")] if options.quick else chosen
    result, values, failures = CaseResult("growth"), [], []
    try:
        for axis in chosen:
            sizes = sizes_of(axis, options.quick, options.largest)
            found = measure_axis(axis, sizes, options.threads, report)
            if "failure" in found:
                failures.append(f"{axis.name} failed: {found['failure']}")
            else:
                values.append(fitted(axis, sizes, found) | {"command": command_of(axis, options)})
    except KeyboardInterrupt:
        result.interrupted = True
    result.tables.append(growth_table(values, failures))
    return result


def measure_axis(axis: GrowthAxis, sizes: tuple[int, ...], threads: int, report: Report) -> dict[str, Any]:
    """`seconds N` and `bytes N` for each size N; or the `failure` of one."""
    found: dict[str, Any] = {}
    ways: list[tuple[str, list[int], dict[str, str]]] = [("seconds", [*sizes], {}), ("bytes", [*sizes], FRESH)]
    if axis.once:
        ways = [("both", [size], {"RAYON_NUM_THREADS": str(threads)}) for size in sizes]
    for what, own, environment in ways:
        arguments = {"axis": axis.name, "sizes": own, "what": what}
        name = f"{axis.name}, {f'{own[0]:,}' if axis.once else what}"
        entry = Entry(name, "weft.bench.growth.measured_axis:axis_work", arguments, environment=environment)
        found |= call_once(entry, threads, report)
    return found


def command_of(axis: GrowthAxis, options: BenchOptions) -> str:
    """What measures this axis alone."""
    more = f" --largest {options.largest:g}" if axis.once and options.largest is not None else ""
    return f'weft bench growth --size "{axis.name}"{more} --threads {options.threads}'


def growth_table(values: list[dict[str, Any]], failures: Iterable[str] = ()) -> ResultTable:
    """Values of axes as a table, with what departs from theory below it."""
    notes = [note for value in values for note in explained(AXES[value["axis"]], value)]
    return ResultTable(TITLE, HEADINGS, tuple(map(cells, values)), (*failures, *notes), tuple(values))


def fitted(axis: GrowthAxis, sizes: tuple[int, ...], found: dict[str, float]) -> dict[str, Any]:
    """Times, bytes and exponents of one axis."""
    seconds, memory = ([found[f"{what} {size}"] for size in sizes] for what in ("seconds", "bytes"))
    processor = [found[name] for size in sizes if (name := f"processor seconds {size}") in found]
    return {
        "axis": axis.name,
        "sizes": list(sizes),
        "seconds": seconds,
        "processor seconds": processor,
        "others": found.get("others"),
        "bytes": memory,
        "exponent": fit_exponent(sizes, seconds),
        "theory": fit_exponent(sizes, [axis.operations(size) for size in sizes]),
        "memory exponent": fit_exponent(sizes, memory) if min(memory) > 0 else None,
        "memory theory": fit_exponent(sizes, [axis.memory(size) for size in sizes]),
        "law": axis.law,
    }


def cells(value: dict[str, Any]) -> tuple[str, ...]:
    """A row of the table: first and last size, time and memory."""
    first, last = value["sizes"][0], value["sizes"][-1]
    return (
        value["axis"],
        f"{first:,} to {last:,}",
        f"{in_seconds(value['seconds'][0])} to {in_seconds(value['seconds'][-1])}",
        f"{value['exponent']:.2f}",
        f"{value['theory']:.2f}",
        f"{in_megabytes(value['bytes'][0])} to {in_megabytes(value['bytes'][-1])}",
        "" if value["memory exponent"] is None else f"{value['memory exponent']:.2f}",
        f"{value['memory theory']:.2f}",
        value["law"],
    )


def in_megabytes(size: float) -> str:
    """Bytes as 0.35 MB, 20.8 MB, 1,234 MB."""
    return f"{size / 1e6:,.0f} MB" if size >= 1e8 else f"{size / 1e6:.3g} MB"


def explained(axis: GrowthAxis, value: dict[str, Any]) -> list[str]:
    """Whether it was disturbed, and why the exponent of time or memory is not theory's, where it is not."""
    found, others = [], value.get("others")
    if others is not None and others > MOST_OTHERS:
        found.append(f"{axis.name}, disturbed: other programs used {others:.2f} cores meanwhile; measure it again")
    if abs(value["exponent"] - value["theory"]) > APART:
        found.append(f"{axis.name}, time: {TIME.get(axis.name, 'not explained yet')}")
    memory = value["memory exponent"]
    if memory is not None and math.isfinite(memory) and abs(memory - value["memory theory"]) > APART:
        found.append(f"{axis.name}, memory: {MEMORY.get(axis.name, 'not explained yet')}")
    return found
