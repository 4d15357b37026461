"""`weft bench memory`: peaks of resident memory: trainings against their plan, imports against their files."""

from __future__ import annotations

from collections.abc import Callable

from weft.bench.contest import BenchOptions
from weft.bench.memory.import_peak import measure_import
from weft.bench.memory.planned_training import CASES, QUICK, measured, predicted
from weft.bench.results import CaseResult, ResultTable
from weft.foundation.errors import WeftError

IMPORTS = {"import bfloat16": "bfloat16", "import float32": "float32"}
WEIGHTS = 1.2e9


def run(options: BenchOptions, report: Callable[[str], None]) -> CaseResult:
    """Measure the rows asked for, one after the other."""
    known = (*QUICK,) if options.quick else (*CASES, *IMPORTS)
    for size in options.sizes:
        if not any(size in name for name in known):
            raise WeftError(f"there is no row {size!r}: choose from {', '.join(known)}")
    chosen = [name for name in known if not options.sizes or any(size in name for size in options.sizes)]
    result = CaseResult("memory")
    try:
        trainings = [name for name in chosen if name not in IMPORTS]
        if trainings:
            result.tables.append(planned_table(trainings, report))
        imports = [name for name in chosen if name in IMPORTS]
        if imports:
            result.tables.append(import_table(imports, options.largest or WEIGHTS, report))
    except KeyboardInterrupt:
        result.interrupted = True
    return result


def planned_table(names: list[str], report: Callable[[str], None]) -> ResultTable:
    """Trainings: the peak that is predicted, and the one that is measured."""
    rows, values = [], []
    for name in names:
        report(f"memory: {name}")
        memory, found = predicted((CASES | QUICK)[name]).total, measured(name)
        ratio = memory / max(found, 1)
        rows.append((name, f"{memory / 1e6:,.0f}", f"{found / 1e6:,.0f}", f"{ratio:.3f}"))
        values.append({"row": name, "predicted": memory, "measured": found, "ratio": ratio})
    headings = ("training", "predicted MB", "measured MB", "ratio")
    return ResultTable("peak memory of trainings against their plan", headings, tuple(rows), values=tuple(values))


def import_table(names: list[str], weights: float, report: Callable[[str], None]) -> ResultTable:
    """Imports: the peak as a multiple of the folder's size."""
    rows, values = [], []
    for name in names:
        report(f"memory: {name}")
        found = measure_import(weights, IMPORTS[name])
        rows.append((name, f"{found['bytes'] / 1e6:,.0f}", f"{found['peak'] / 1e6:,.0f}", f"{found['ratio']:.2f}"))
        values.append({"row": name, **found})
    title = f"peak memory of importing {weights:.3g} weights, certificate included"
    return ResultTable(title, ("import", "MB on disk", "peak MB", "ratio"), tuple(rows), values=tuple(values))
