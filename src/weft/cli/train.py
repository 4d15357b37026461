"""`weft train`: from data to a run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from shlex import join, quote
from typing import Any

from rich.console import Console
from rich.markup import escape

from weft.checkpoints.run_folder import RunFolder
from weft.cli.reporter import TensorBoardReporter, TerminalReporter
from weft.cli.terminal import console, print_json
from weft.figures.charts.curves import draw_curves
from weft.foundation.errors import WeftError
from weft.training.reporting import Reporter
from weft.training.train import Trained, TrainRequest, run_training

CURVES = "curves.png"


def run_train(
    task: str, data: Sequence[str], out: Path | None, request: TrainRequest, tensorboard: bool, as_json: bool
) -> None:
    """Train, then print what was reached beside what was planned, known to be possible, and simple methods."""
    if out is None:
        raise WeftError(f"where shall the run go? Give a folder: weft train {task} {join(data)} --out runs/{task}")
    with TerminalReporter(f"training {task}") as terminal:
        reporter: Reporter = terminal
        if tensorboard:
            reporter = TensorBoardReporter(terminal, str(out / "tensorboard"))
        try:
            trained = run_training(task, data, out, request, reporter)
        except KeyboardInterrupt:
            terminal.noted(f"stopped; go on with: weft train {task} {join(data)} --out {quote(str(out))} --resume")
            raise
    picture = draw_training(out, trained)
    if as_json:
        print_json(
            {
                "run": str(out),
                "steps": trained.steps,
                "seconds": round(trained.seconds, 3),
                "loss": trained.loss,
                "metrics": trained.metrics,
                "metric": trained.run.task.metric,
                "references": trained.references,
                "parameters": trained.plan.parameters,
                "planned_seconds": trained.plan.seconds,
                "best_possible": None if trained.best is None else trained.best.value,
                "leak": trained.leak,
            }
        )
    else:
        _print(console(), task, out, trained, picture)


def draw_training(out: Path, trained: Trained) -> Path:
    """The training curves as a picture in the run's folder."""
    rows = list(RunFolder(out).read_metrics())
    curves = {
        "training": [(row["step"], row["loss"]) for row in rows if "loss" in row],
        "held out": [(row["step"], row["validation"]) for row in rows if "validation" in row],
    }
    best = trained.best
    known = (best.value, "best possible") if best is not None and best.metric == "loss" else None
    picture = out / CURVES
    draw_curves(picture, curves, title=str(out.name), y_label="loss in nats", known=known)
    return picture


def print_metrics(out: Console, metrics: dict[str, Any], main: str, references: dict[str, float] | None = None) -> None:
    """One line per number, the `main` metric first and in bold; what simple methods reach stands below, dimmed."""
    wide = max(map(len, (*metrics, *(references or {}), "best possible")))
    for name, value in sorted(metrics.items(), key=lambda item: item[0] != main):
        title = name.replace("_", " ").ljust(wide)
        if isinstance(value, list) and value and isinstance(value[0], dict):
            out.print(f"  {title}")
            for row in value:
                out.print("    " + "  ".join(f"{key} {_number(cell)}" for key, cell in row.items()), markup=False)
        elif isinstance(value, dict):
            out.print(f"  {title} " + ", ".join(f"{k} {_number(v)}" for k, v in value.items()), markup=False)
        else:
            out.print(f"  {title} {_number(value)}", markup=False, style="bold" if name == main else "")
    for name, value in (references or {}).items():
        out.print(f"  [dim]{escape(name.ljust(wide))} {_number(value)}[/dim]")


def _number(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _print(out: Console, task: str, place: Path, trained: Trained, picture: Path) -> None:
    plan = trained.plan
    minutes = f"{trained.seconds / 60:.1f} min"
    planned = "" if plan.seconds is None else f" (planned: {plan.steps:,} steps, {plan.seconds / 60:.1f} min)"
    out.print(f"\n[bold]{plan.parameters:,} parameters, {trained.steps:,} steps in {minutes}{planned}[/bold]")
    out.print("On held-out data:")
    print_metrics(out, trained.metrics, trained.run.task.metric, trained.references)
    if trained.best is not None:
        out.print(
            f"  [dim]best possible    {trained.best.value:.4f} {escape(trained.best.metric)} "
            f"({escape(trained.best.why)})[/dim]"
        )
    if trained.leak is not None:
        out.print(f"[bold red]LEAK: {escape(trained.leak)}[/bold red]")
    out.print(f"\nrun: {escape(str(place))}   curves: {escape(str(picture))}")
    run = quote(str(place))
    out.print(
        f"next: weft predict {run} ...   weft eval {run} DATA   weft look {run} ...   weft laws {run}", markup=False
    )
