"""`weft compare`: two runs on the same data, with a paired test."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weft.cli.app import AsJson, Device, Limit, app
from weft.cli.environment import load_torch
from weft.foundation.errors import WeftError

if TYPE_CHECKING:
    from weft.runs.compare import RunComparison

LONGEST = 200  # characters of an input or an answer that are shown


@app.command()
def compare(
    run_a: Annotated[Path, typer.Argument(help="Folder of a run.", metavar="RUN")],
    run_b: Annotated[Path, typer.Argument(help="Folder of another run of the same task.", metavar="RUN")],
    data: Annotated[
        list[str],
        typer.Argument(help="Data that neither was trained on: files, or sample: for built-in data.", metavar="DATA"),
    ],
    limit: Limit = None,
    examples: Annotated[
        int, typer.Option(help="Number of examples to show that the runs answer differently.", metavar="N")
    ] = 5,
    seed: Annotated[int, typer.Option(help="Seed of the resamples.")] = 0,
    settings: Annotated[
        list[str],
        typer.Option(
            "--set", help="Change how data are read, such as data.columns=text,mood; repeatable.", metavar="DATA.B=C"
        ),
    ] = [],  # noqa: B006
    device: Device = None,
    as_json: AsJson = False,
) -> None:
    """Compare two runs on the same data: metrics side by side, whether they differ by more than chance, and where.

    Differences come with a 95 % interval (paired bootstrap over examples) and a p-value (permutation test).

    \b
    Examples:
      weft compare runs/a runs/b test.csv
      weft compare runs/ende runs/ende-large test.en test.de --limit 500 --examples 20
    """
    load_torch()
    from weft.cli.settings import read_settings
    from weft.cli.terminal import print_json, progress
    from weft.runs.compare import compare as compare_runs
    from weft.runs.run import load

    changes = read_settings(settings)
    other = next((name for name in changes if not name.startswith("data.")), None)
    if other is not None:
        raise WeftError(f"--set {other}: runs are compared as they are; only the reading can be set: data.columns=a,b")
    options = {name.removeprefix("data."): value for name, value in changes.items()}
    first, second = (load(run, device) for run in (run_a, run_b))
    with progress("comparing") as report:
        found = compare_runs(
            first,
            second,
            data,
            options=options,
            limit=limit,
            shown=examples,
            seed=seed,
            report=lambda share: report(share, ""),
        )
    if as_json:
        print_json(found.to_tree())
    else:
        print_comparison(found)


def print_comparison(found: RunComparison) -> None:
    """A table of metrics, the verdict, notes, and the examples that differ."""
    from rich.markup import escape
    from rich.table import Table

    from weft.cli.terminal import console, without_controls

    out = console()
    table = Table(box=None, padding=(0, 2), pad_edge=False)
    for title in ("", "a", "b", "b - a", "95 %", "p"):
        table.add_column(title, justify="right" if title else "left", no_wrap=True)
    first, second = found.metrics
    for name in sorted(first, key=lambda name: (name != found.metric, name not in found.tests)):
        one, two = first[name], second.get(name)
        if not isinstance(one, (int, float)) or not isinstance(two, (int, float)):
            continue
        test = found.tests.get(name)
        tested = ("", "", "")
        if test is not None:
            tested = (f"{test.difference:+.4f}", f"{test.low:+.4f} to {test.high:+.4f}", f"{test.p_value:.3f}")
        style = "bold" if name == found.metric else ""
        table.add_row(name.replace("_", " "), _number(one), _number(two), *tested, style=style)
    out.print(f"a: {escape(found.runs[0])}\nb: {escape(found.runs[1])}\n")
    out.print(table)
    out.print(f"\n{escape(found.verdict)}", soft_wrap=True)
    for note in found.notes:
        out.print(f"note: {escape(note)}", soft_wrap=True)
    if found.differing:
        shown = len(found.differences)
        out.print(f"\n{found.differing:,} of {found.examples:,} examples are answered differently; {shown} of them:")
    for one in found.differences:
        lines = [_line(one.input)]
        lines += [] if one.truth is None else [f"  truth: {_line(one.truth)}"]
        lines += [f"  a:     {_line(one.a)}", f"  b:     {_line(one.b)}"]
        out.print(without_controls("\n".join(lines)), markup=False, soft_wrap=True)


def _number(value: float) -> str:
    return f"{value:.4f}" if isinstance(value, float) else f"{value:,}"


def _line(value: Any) -> str:
    """A value on one line, cut where it is long."""
    text = " ".join(str(part) for part in value) if isinstance(value, (list, tuple)) else str(value)
    text = text.replace("\n", "\\n")
    return text if len(text) <= LONGEST else f"{text[:LONGEST]} ..."
