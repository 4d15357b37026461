"""`weft bench growth`: time and memory against length, batch, width, layers, experts, vocabulary and data size.

Each axis is measured in two processes of its own, one for time and one, whose freed memory returns to the kernel at
once, for memory. The exponent p of time = c size^p is fitted by least squares over all sizes; theory's is fitted in the
same way to the operations that must be done at these sizes. Where the two differ by more than 0.15, the table says why,
or that it is not known.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from weft.bench.contest import BenchOptions, Entry
from weft.bench.growth.axes import AXES, GrowthAxis, sizes_of
from weft.bench.reporting.text import in_seconds
from weft.bench.results import CaseResult, ResultTable, fit_exponent
from weft.bench.running.turns import call_once
from weft.foundation.errors import WeftError

HEADINGS = ("axis", "sizes", "time", "exponent", "theory", "memory", "exponent", "theory", "law")
APART = 0.15  # exponents that differ by more are explained
FRESH = {"MALLOC_MMAP_THRESHOLD_": "65536"}


def run(options: BenchOptions, report: Callable[[str], None]) -> CaseResult:
    """Measure the axes asked for."""
    for size in options.sizes:
        if not any(size in name for name in AXES):
            raise WeftError(f"there is no axis {size!r}: choose from {', '.join(AXES)}")
    chosen = [axis for name, axis in AXES.items() if not options.sizes or any(size in name for size in options.sizes)]
    chosen = [axis for axis in chosen if axis.name.startswith("batch")] if options.quick else chosen
    result, rows, values, notes = CaseResult("growth"), [], [], []
    try:
        for axis in chosen:
            sizes = sizes_of(axis, options.quick, options.largest)
            found: dict[str, Any] = {}
            for what in ("seconds", "bytes"):
                arguments = {"axis": axis.name, "sizes": list(sizes), "what": what}
                place, more = "weft.bench.growth.measured_axis:axis_work", FRESH if what == "bytes" else {}
                entry = Entry(f"{axis.name}, {what}", place, arguments, environment=more)
                found |= call_once(entry, options.threads, report)
            if "failure" in found:
                notes.append(f"{axis.name} failed: {found['failure']}")
                continue
            value = fitted(axis, sizes, found)
            values.append(value)
            rows.append(cells(axis, value))
            notes += explained(axis, value)
    except KeyboardInterrupt:
        result.interrupted = True
    title = "time and memory against size, with fitted exponents"
    result.tables.append(ResultTable(title, HEADINGS, tuple(rows), tuple(notes), tuple(values)))
    return result


def fitted(axis: GrowthAxis, sizes: tuple[int, ...], found: dict[str, float]) -> dict[str, Any]:
    """Times, bytes and exponents of one axis."""
    seconds = [found[f"seconds {size}"] for size in sizes]
    memory = [found[f"bytes {size}"] for size in sizes]
    return {
        "axis": axis.name,
        "sizes": list(sizes),
        "seconds": seconds,
        "bytes": memory,
        "exponent": fit_exponent(sizes, seconds),
        "theory": fit_exponent(sizes, [axis.operations(size) for size in sizes]),
        "memory exponent": fit_exponent(sizes, memory) if min(memory) > 0 else None,
        "memory theory": axis.memory_exponent,
        "law": axis.law,
    }


def cells(axis: GrowthAxis, value: dict[str, Any]) -> tuple[str, ...]:
    """A row of the table: first and last size, time and memory."""
    first, last = value["sizes"][0], value["sizes"][-1]
    return (
        axis.name,
        f"{first:,} to {last:,}",
        f"{in_seconds(value['seconds'][0])} to {in_seconds(value['seconds'][-1])}",
        f"{value['exponent']:.2f}",
        f"{value['theory']:.2f}",
        f"{value['bytes'][0] / 1e6:,.3g} to {value['bytes'][-1] / 1e6:,.3g} MB",
        "" if value["memory exponent"] is None else f"{value['memory exponent']:.2f}",
        "" if value["memory theory"] is None else f"{value['memory theory']:g}",
        axis.law,
    )


def explained(axis: GrowthAxis, value: dict[str, Any]) -> list[str]:
    """Why the exponent of time or memory is not theory's, where it is not."""
    found = []
    if abs(value["exponent"] - value["theory"]) > APART:
        found.append(f"{axis.name}, time: {axis.why or 'not explained yet'}")
    wanted, memory = value["memory theory"], value["memory exponent"]
    if wanted is not None and memory is not None and math.isfinite(memory) and abs(memory - wanted) > APART:
        found.append(f"{axis.name}, memory: {axis.memory_why or 'not explained yet'}")
    return found


def growth_markdown(table: ResultTable, machine: dict[str, Any]) -> str:
    """The table as the page docs/GROWTH.md."""
    lines = [
        "# Growth",
        "",
        "Written by `weft bench growth --markdown docs/GROWTH.md`. Time and memory against size; the exponent p of",
        "time = c size^p is fitted over all sizes, theory's to the operations that must be done at these sizes. Memory",
        "is the peak that a call adds to what was resident before it.",
        "",
        f"| {' | '.join(table.headings)} |",
        f"|{'---|' * len(table.headings)}",
        *(f"| {' | '.join(row)} |" for row in table.rows),
        "",
        "## What departs from theory",
        "",
        *(f"- {note}" for note in table.notes or ("Nothing, by more than 0.15.",)),
        "",
        f"Measured with {machine['threads']} threads, torch {machine['versions'].get('torch', '?')}.",
    ]
    return "\n".join(lines) + "\n"


def write_growth(result: CaseResult, machine: dict[str, Any], path: Path) -> None:
    """Write the page."""
    from weft.foundation.atomic_files import write_text

    write_text(path, growth_markdown(result.tables[0], machine))
