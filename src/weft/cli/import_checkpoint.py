"""`weft import`: makes a run of a checkpoint from another library."""

from __future__ import annotations

import shlex
import warnings
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from weft.checkpoints.convert_checkpoint import ImportReport, convert_checkpoint
from weft.cli.terminal import console, print_json, progress
from weft.tasks.registry import task_named


def run_import(source: Path, out: Path, certified: bool, as_json: bool) -> None:
    """Import a checkpoint, and print where the run is and how it compares."""
    with warnings.catch_warnings(record=True) as caught, progress("importing") as report:
        warnings.simplefilter("always")
        made = convert_checkpoint(source, out, certified, report)
    told = console(to_stderr=True)
    for warning in caught:
        if warning.category is UserWarning:
            told.print(f"weft: {warning.message}", markup=False)
    if as_json:
        print_json(made.to_tree())
        return
    _print(console(), made)


def _print(out: Console, made: ImportReport) -> None:
    out.print(
        f"[bold]{escape(str(made.run))}[/bold]: {made.architecture} ({made.family}), {made.parameters:,} parameters"
    )
    certificate = made.certificate
    if certificate is None:
        out.print(f"no certificate: {made.uncertified}", markup=False)
    else:
        out.print(
            f"certificate: {certificate.outputs:,} outputs differ from those of {certificate.peer} by at most "
            f"{certificate.difference:.2g} (the largest is {certificate.largest:.3g})"
        )
    if made.left_out:
        out.print(f"left out, because no task uses them: {', '.join(made.left_out[:4])}", markup=False)
    words = f"weft predict {shlex.quote(str(made.run))} {task_named(made.task).example}"
    out.print(f"Next: {words}", markup=False, style="dim")
