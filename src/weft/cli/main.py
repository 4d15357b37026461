"""The command `weft`. Nothing here imports torch: help and version are fast, commands import what they need."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from weft.cli import run_commands as runs
from weft.cli.app import FAILED, INTERRUPTED, AsJson, Device, app
from weft.cli.environment import choose_for_this_machine

__all__ = ["app", "run", "runs"]

TASK = "weft.train.task"


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
    task: Annotated[
        str,
        typer.Argument(help="A task; `weft train --help` lists those that are installed.", metavar="TASK"),
    ],
    data: Annotated[list[str], typer.Argument(help="Files or folders, or sample: for built-in data.", metavar="DATA")],
    out: Annotated[Path | None, typer.Option(help="Folder of the new run.", metavar="RUN")] = None,
    preset: Annotated[
        str | None, typer.Option(help="Name of a preset; auto fits the model to data and time.", show_default="auto")
    ] = None,
    settings: Annotated[
        list[str],
        typer.Option("--set", help="Change one option, such as training.rate=0.001; repeatable.", metavar="A.B=C"),
    ] = [],  # noqa: B006
    config: Annotated[Path | None, typer.Option(help="TOML file with options.", metavar="FILE")] = None,
    steps: Annotated[int | None, typer.Option(help="Number of training steps.")] = None,
    minutes: Annotated[
        float | None, typer.Option(help="Training time in minutes; 5 if neither steps nor minutes are given.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of everything random.", show_default="0")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in --out, to the same bits.")] = False,
    base: Annotated[
        Path | None,
        typer.Option("--from", help="Fine-tune this run: start from its model, tokenizer and weights.", metavar="RUN"),
    ] = None,
    lora: Annotated[
        int | None, typer.Option(help="With --from: train adapters of this rank, freeze the weights.", metavar="RANK")
    ] = None,
    device: Device = None,
    compiled: Annotated[bool, typer.Option("--compile/--no-compile", help="Train through torch.compile.")] = False,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Also write TensorBoard files.")] = False,
    as_json: AsJson = False,
) -> None:
    """Train a model on your data.

    The time plan measures this machine and chooses model, batch size and number of steps so that training ends on time.
    Options on the command line win over --set, and --set over --config.

    \b
    Examples:
      weft train text book.txt --out runs/book --minutes 5
      weft train translation train.en train.de --out runs/ende --preset nano-gru-additive --steps 2000
      weft train images sample:digits --out runs/digits --set training.rate=0.001
      weft train text letters.txt --from runs/book --lora 8 --out runs/letters
      weft train classification reviews.csv --from runs/minilm --out runs/reviews
      weft train text --help                   every default of a task
    """
    from weft.cli.train import build_request, run_train

    given = {
        "preset": preset,
        "steps": steps,
        "minutes": minutes,
        "seed": seed,
        "device": device,
        "training.lora": lora,
    }
    request = build_request(
        given, settings, config, task=task, data=tuple(data), out=out, resume=resume, base=base, compile=compiled
    )
    run_train(request, tensorboard, as_json)


@app.command()
def show(
    preset: Annotated[
        str | None,
        typer.Argument(
            metavar="RUN|PRESET",
            help="Name of a preset, folder of a run, or spec file (.json, .toml); all presets if left out.",
        ),
    ] = None,
    length: Annotated[
        int | None, typer.Option(help="Sequence length N in tokens; the model's own if left out.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show what a model is made of and what it costs.

    Parameters, shapes, the matrix products of a block, memory and FLOPs, for models of any size: no weights are made.

    \b
    Examples:
      weft show                                all presets with family and parameters
      weft show gpt2
      weft show gpt3-175b --length 100000      what N x N attention weights would take
      weft show my-model.toml --json
    """
    from weft.cli.show import show_model, show_presets

    if preset is None:
        show_presets(as_json)
    else:
        show_model(preset, length, as_json)


@app.command()
def demo(
    seconds: Annotated[float, typer.Option(help="Training time in seconds, for both models together.")] = 90.0,
    out: Annotated[Path, typer.Option(help="Folder of the runs and the picture; an earlier demo is replaced.")] = Path(
        "weft-demo"
    ),
    as_json: AsJson = False,
) -> None:
    """Train two small models on built-in data and see what they learned.

    A language model is trained on Python's own documentation and sources, a translator on dates. Needs no network.

    \b
    Examples:
      weft demo
      weft demo --seconds 300 --out runs/demo
      weft demo --json
    """
    from weft.cli.demo import run_demo

    run_demo(seconds, out, as_json)


@app.command()
def laws(
    preset: Annotated[
        str | None, typer.Argument(metavar="RUN|PRESET", help="Folder of a run or name of a preset.")
    ] = None,
    module: Annotated[
        str | None, typer.Option(help="Your own model: package.module:factory, a function that makes it.")
    ] = None,
    example: Annotated[
        str | None, typer.Option(help="Token ids to check it with, such as 3,1,4; random ones if left out.")
    ] = None,
    causal: Annotated[
        bool | None, typer.Option("--causal/--not-causal", help="Declare whether tokens see only earlier ones.")
    ] = None,
    positions: Annotated[
        str | None, typer.Option(help="Declare the kind of its positions: none, absolute or relative.")
    ] = None,
    reach: Annotated[int | None, typer.Option(help="Declare how many tokens back it sees, over all layers.")] = None,
    vocabulary: Annotated[int | None, typer.Option(help="Declare the size of its vocabulary.")] = None,
    compiled: Annotated[
        bool, typer.Option("--compiled", help="Also compare with the model under torch.compile.")
    ] = False,
    html: Annotated[Path | None, typer.Option(help="Also write the report to this HTML file.", metavar="FILE")] = None,
    as_json: AsJson = False,
) -> None:
    """Check that a model does what it declares.

    A causal model does not look ahead; padding, other rows of the batch and packing change nothing; decoding with a
    cache equals the full forward pass; and more. The exit code is 1 if a declared law is broken.

    \b
    Examples:
      weft laws nano-gpt
      weft laws mixtral-8x7b --json                large presets are checked at a smaller size
      weft laws --module my_project.model:build --causal --html laws.html
    """
    from weft.cli.laws import run_laws

    given = {"causal": causal, "positions": positions, "reach": reach, "vocabulary": vocabulary}
    declared = {name: value for name, value in given.items() if value is not None}
    if not run_laws(preset, module, example, declared, as_json, html, compiled):
        raise typer.Exit(FAILED)


def run() -> None:
    """The entry point of `weft` and `python -m weft`."""
    for stream in (sys.stdout, sys.stderr):
        # A terminal that cannot show a sign gets a question mark instead of a traceback.
        stream.reconfigure(errors="replace")  # type: ignore[union-attr]
    waiting = choose_for_this_machine()
    try:
        app(prog_name="weft", obj=waiting)
    except KeyboardInterrupt:
        print("weft: stopped", file=sys.stderr)
        sys.exit(INTERRUPTED)
