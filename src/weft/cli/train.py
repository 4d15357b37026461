"""`weft train`: trains a model on data and prints what it reached."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from shlex import join, quote
from typing import Any

from rich.console import Console
from rich.markup import escape

from weft.checkpoints.run_folder import RunFolder
from weft.cli.reporter import TensorBoardReporter, TerminalReporter
from weft.cli.settings import override, read_config, read_settings
from weft.cli.terminal import console, print_json
from weft.figures.charts.curves import draw_curves
from weft.foundation.errors import WeftError
from weft.foundation.spec import Tree
from weft.training.reporting import Reporter
from weft.training.request import TrainRequest
from weft.training.result import TrainingResult
from weft.training.train import run_training

CURVES = "curves.png"
REQUEST_OPTIONS = ("preset", "steps", "minutes", "seed", "device")


def build_request(given: Tree, settings: Sequence[str], config: Path | None, **fields: Any) -> TrainRequest:
    """The request of the command line (`given`, None where an option was left out), over --set, over --config.

    Options named as the request's fields are these, all others are changes by dotted names.
    """
    task, data, out, base = fields["task"], fields["data"], fields["out"], fields["base"]
    if out is None:
        raise WeftError(f"no folder for the run: add --out, as in weft train {task} {join(data)} --out runs/{task}")
    fields["base"] = None if base is None else str(base)
    given = {name: value for name, value in given.items() if value is not None}
    options = override(override(read_config(config), read_settings(settings)), given)
    fields |= {name: options[name] for name in REQUEST_OPTIONS if options.get(name) is not None}
    changes = {name: value for name, value in options.items() if name not in REQUEST_OPTIONS}
    return TrainRequest(**fields, changes=changes)


def run_train(request: TrainRequest, tensorboard: bool, as_json: bool) -> None:
    """Train, then print the metrics beside the plan, the best possible score and simple methods."""
    out = request.out
    with TerminalReporter(f"training {request.task}") as terminal:
        reporter: Reporter = terminal
        if tensorboard:
            reporter = TensorBoardReporter(terminal, str(out / "tensorboard"))
        try:
            result = run_training(request, reporter)
        except KeyboardInterrupt:
            command = f"weft train {request.task} {join(request.data)} --out {quote(str(out))} --resume"
            terminal.on_note(f"stopped; continue with: {command}")
            raise
    picture = draw_training(out, result)
    if as_json:
        print_json(
            {
                "run": str(out),
                "steps": result.steps,
                "seconds": round(result.seconds, 3),
                "loss": result.loss,
                "metrics": result.metrics,
                "metric": result.run.task.metric,
                "references": result.references,
                "parameters": result.plan.parameters,
                "planned_seconds": result.plan.seconds,
                "best_possible": None if result.best is None else result.best.value,
                "leak": result.leak,
            }
        )
    else:
        _print(console(), out, result, picture)


def draw_training(out: Path, result: TrainingResult) -> Path:
    """Draw the loss curves into the run's folder; gives the picture's path."""
    rows = list(RunFolder(out).read_metrics())
    curves = {
        "training": [(row["step"], row["loss"]) for row in rows if "loss" in row],
        "validation": [(row["step"], row["validation"]) for row in rows if "validation" in row],
    }
    best = result.best
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


def _print(out: Console, folder: Path, result: TrainingResult, picture: Path) -> None:
    plan = result.plan
    minutes = f"{result.seconds / 60:.1f} min"
    planned = "" if plan.seconds is None else f" (planned: {plan.steps:,} steps, {plan.seconds / 60:.1f} min)"
    out.print(f"\n[bold]{plan.parameters:,} parameters, {result.steps:,} steps in {minutes}{planned}[/bold]")
    out.print("On validation data:")
    print_metrics(out, result.metrics, result.run.task.metric, result.references)
    if result.best is not None:
        out.print(
            f"  [dim]best possible    {result.best.value:.4f} {escape(result.best.metric)} "
            f"({escape(result.best.why)})[/dim]"
        )
    if result.leak is not None:
        out.print(f"[bold red]LEAK: {escape(result.leak)}[/bold red]")
    out.print(f"\nrun: {escape(str(folder))}   curves: {escape(str(picture))}")
    run = quote(str(folder))
    out.print(
        f"next: weft predict {run} ...   weft eval {run} DATA   weft look {run} ...   weft laws {run}", markup=False
    )
