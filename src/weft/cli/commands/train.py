"""`weft train`: trains a model on data and prints what it reached."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from shlex import join, quote
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperCommand

from weft.cli.app import AsJson, Device, Module, app
from weft.cli.factory import find_factory
from weft.cli.train_options import (
    Base,
    Compiled,
    Config,
    DataPaths,
    Lora,
    Minutes,
    Out,
    Parallel,
    Preset,
    Processes,
    Resume,
    Seed,
    Settings,
    Steps,
    TaskName,
    TensorBoard,
    Timeout,
)
from weft.foundation.errors import WeftError

if TYPE_CHECKING:
    from rich.console import Console

    from weft.foundation.spec import Tree
    from weft.training.reporting import Reporter
    from weft.training.request import TrainRequest
    from weft.training.result import TrainingResult


CURVES = "curves.png"
TASK = "weft.train.task"
REQUEST_OPTIONS = ("preset", "steps", "minutes", "seed", "device")


class _TrainCommand(TyperCommand):
    """`weft train --help` lists all tasks, and `weft train TASK --help` every default of that task."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        # --help acts before any argument is set, so the task is kept beside the context.
        ctx.meta[TASK] = self.make_parser(ctx).parse_args(list(args))[0].get("task")
        return super().parse_args(ctx, args)

    def get_help(self, ctx: Any) -> str:
        from weft.cli.settings import list_defaults
        from weft.tasks.registry import trainable_tasks

        tasks, task = trainable_tasks(), ctx.meta.get(TASK)
        argument: Any = next(parameter for parameter in self.params if parameter.name == "task")
        argument.help = f"Task to train: {', '.join(tasks)}."
        return super().get_help(ctx) + (f"\n\n{list_defaults(task)}" if task in tasks else "")


@app.command(cls=_TrainCommand)
def train(
    task: TaskName,
    data: DataPaths,
    out: Out = None,
    preset: Preset = None,
    settings: Settings = [],  # noqa: B006
    config: Config = None,
    steps: Steps = None,
    minutes: Minutes = None,
    seed: Seed = None,
    resume: Resume = False,
    base: Base = None,
    lora: Lora = None,
    module: Module = None,
    device: Device = None,
    compiled: Compiled = None,
    processes: Processes = None,
    parallel: Parallel = None,
    timeout: Timeout = None,
    tensorboard: TensorBoard = False,
    as_json: AsJson = False,
) -> None:
    """Train a model on your data.

    The time plan measures this machine and chooses model, batch size and number of steps so that training ends on time.
    From two minutes on, the most promising sizes race for a share of the time. A plan of --minutes gets more or fewer
    steps if the machine's speed changes; plan.json records each revision, and --resume follows it. --steps are kept.
    Options on the command line win over --set, and --set over --config.

    \b
    Examples:
      weft train text book.txt --out runs/book --minutes 5
      weft train translation train.en train.de --out runs/ende --preset nano-gru-additive --steps 2000
      weft train images sample:digits --out runs/digits --set training.rate=0.001
      weft train images sample:digits --out runs/vit --preset vit          the vision transformer as lectures draw it
      weft train text letters.txt --from runs/book --lora 8 --out runs/letters
      weft train classification reviews.csv --from runs/minilm --out runs/reviews
      weft train text book.txt --module my_model.py:MyGPT --out runs/own     your own torch module; also with --resume
      weft train text book.txt --out runs/big --processes 4 --parallel fsdp      four processes on this machine
      torchrun --nproc-per-node 8 -m weft train text book.txt --out runs/big     by torchrun, also on many machines
      weft train text --help                   every default of a task
    """
    from weft.training.parallel.processes.give_up import expect_another_try, same_on_all

    expect_another_try()
    given = {
        "preset": preset,
        "steps": steps,
        "minutes": minutes,
        "seed": seed,
        "device": device,
        "training.lora": lora,
    }
    with same_on_all():
        request = build_request(
            given,
            settings,
            config,
            task=task,
            data=tuple(data),
            out=out,
            resume=resume,
            base=base,
            compile=compiled,
            parallel=parallel,
            timeout=timeout,
        )
    if processes is not None:
        start_processes(request, processes)
    else:
        run_train(request, tensorboard, as_json, module)


def start_processes(request: TrainRequest, count: int) -> None:
    """Run this very command in `count` processes of torchrun's elastic agent."""
    from weft.training.parallel.processes.launch import launch

    words, rest = [], iter(sys.argv[1:])
    for word in rest:
        if word == "--processes":
            next(rest, None)
        elif not word.startswith("--processes="):
            words.append(word)
    code = launch(words, count, request)
    if code:
        raise typer.Exit(code)


def build_request(given: Tree, settings: Sequence[str], config: Path | None, **fields: Any) -> TrainRequest:
    """The request of the command line (`given`, None where an option was left out), over --set, over --config.

    Options named as the request's fields are these, all others are changes by dotted names.
    """
    from weft.cli.settings import override, read_config, read_settings
    from weft.training.request import TrainRequest

    task, data, out, base = fields["task"], fields["data"], fields["out"], fields["base"]
    if out is None:
        raise WeftError(f"no folder for the run: add --out, as in weft train {task} {join(data)} --out runs/{task}")
    fields["base"] = None if base is None else str(base)
    given = {name: value for name, value in given.items() if value is not None}
    options = override(override(read_config(config), read_settings(settings)), given)
    fields |= {name: options[name] for name in REQUEST_OPTIONS if options.get(name) is not None}
    changes = {name: value for name, value in options.items() if name not in REQUEST_OPTIONS}
    return TrainRequest(**fields, changes=changes)


def run_train(request: TrainRequest, tensorboard: bool, as_json: bool, module: str | None = None) -> None:
    """Train, then print the metrics beside the plan, the best possible score and simple methods."""
    from weft.cli.reporter import TensorBoardReporter, TerminalReporter
    from weft.cli.terminal import console, print_json
    from weft.reports.report import report_training
    from weft.training.parallel.processes.give_up import same_on_all
    from weft.training.parallel.world import leads
    from weft.training.train import run_training

    out = request.out
    with TerminalReporter(f"training {request.task}", silent=not leads()) as terminal:
        reporter: Reporter = terminal
        if tensorboard and leads():
            reporter = TensorBoardReporter(terminal, str(out / "tensorboard"))
        with same_on_all():
            factory = find_factory(module)
        try:
            result = run_training(request, reporter, factory)
            if result is None:  # the first of several processes prints
                return
            report = report_training(request, result, reporter, module)
        except KeyboardInterrupt:
            own = "" if module is None else f" --module {quote(module)}"
            command = f"weft train {request.task} {join(request.data)}{own} --out {quote(str(out))} --resume"
            terminal.on_note(f"stopped; continue with: {command}")
            raise
    picture = draw_training(out, result)
    if as_json:
        print_json(
            {
                "run": str(out),
                "report": None if report is None else str(report),
                "steps": result.steps,
                "seconds": round(result.seconds, 3),
                "loss": result.loss,
                "metrics": result.metrics,
                "metric": result.run.task.metric,
                "intervals": result.intervals,
                "references": result.references,
                "loses_to": list(result.loses_to),
                "parameters": result.plan.parameters,
                "planned_seconds": result.plan.seconds,
                "planned_steps": [result.plan.steps, *(revision.steps for revision in result.plan.revisions)],
                "race": None if result.plan.race is None else result.plan.race.describe(),
                "head": None if result.plan.head is None else result.plan.head.describe(),
                "best_possible": None if result.best is None else result.best.value,
                "leak": result.leak,
                "trust": result.trust,
                **({} if result.test is None else {"test": result.test}),
            }
        )
    else:
        _print(console(), out, result, {"curves": picture, "report": report}, module)


def draw_training(out: Path, result: TrainingResult) -> Path:
    """Draw the loss curves into the run's folder; gives the picture's path."""
    from weft.checkpoints.run_folder import RunFolder
    from weft.figures.charts.curves import draw_curves

    rows = list(RunFolder(out).read_metrics())
    curves = {
        "training": [(row["step"], row["loss"]) for row in rows if "loss" in row],
        "validation": [(row["step"], row["validation"]) for row in rows if "validation" in row],
    }
    curves = {name: points for name, points in curves.items() if points}
    best = result.best
    known = (best.value, "best possible") if best is not None and best.metric == "loss" else None
    picture = out / CURVES
    draw_curves(picture, curves, title=str(out.name), y_label="loss in nats", known=known)
    return picture


def _print(
    out: Console, folder: Path, result: TrainingResult, pages: dict[str, Path | None], module: str | None
) -> None:
    """What was reached, and where it can be seen."""
    from rich.markup import escape

    from weft.cli.metrics import print_metrics, print_standing, print_trust

    plan = result.plan
    minutes = f"{result.seconds / 60:.1f} min"
    revised = f", then {plan.last:,}" if plan.revisions else ""
    planned = "" if plan.seconds is None else f" (planned: {plan.steps:,} steps{revised}, {plan.seconds / 60:.1f} min)"
    out.print(f"\n[bold]{plan.parameters:,} parameters, {result.steps:,} steps in {minutes}{planned}[/bold]")
    out.print("On validation data:")
    task = result.run.task
    print_metrics(out, result.metrics, task.metric, result.references, result.intervals, task.judged_by)
    print_standing(out, task.judged_by, result.metrics, result.references, result.intervals)
    print_trust(out, result.trust)
    if result.test is not None:
        out.print("On the test part, which neither training nor the choice of the weights has seen:")
        print_metrics(out, result.test, task.metric)
    if result.best is not None:
        out.print(
            f"  [dim]best possible    {result.best.value:.4f} {escape(result.best.metric)} "
            f"({escape(result.best.why)})[/dim]"
        )
    if result.leak is not None:
        out.print(f"[bold red]LEAK: {escape(result.leak)}[/bold red]")
    shown = [(name, path) for name, path in pages.items() if path is not None]
    paths = "".join(f"   {name}: {path}" for name, path in shown)
    out.print(f"\nrun: {folder}{paths}", markup=False, soft_wrap=True)
    run = quote(str(folder)) + ("" if module is None else f" --module {quote(module)}")
    out.print(
        f"next: weft predict {run} ...   weft eval {run} DATA   weft look {run} ...   weft laws {run}", markup=False
    )
