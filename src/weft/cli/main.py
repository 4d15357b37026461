"""The command `weft`. Nothing here imports torch: help and version answer at once, rooms load inside the commands."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from weft.cli import run_commands as runs
from weft.cli.app import FAILED, INTERRUPTED, AsJson, app

__all__ = ["app", "run", "runs"]


class _TrainCommand(TyperCommand):
    """`weft train --help` lists all tasks, and `weft train TASK --help` every default of that task."""

    def get_help(self, ctx: Any) -> str:
        from weft.cli.settings import list_defaults
        from weft.tasks.registry import trainable_tasks

        tasks = trainable_tasks()
        argument: Any = next(parameter for parameter in self.params if parameter.name == "task")
        argument.help = f"{', '.join(tasks)}."
        named = next((word for word in sys.argv[1:] if word in tasks), None)
        return super().get_help(ctx) + ("" if named is None else f"\n\n{list_defaults(named)}")


@app.command(cls=_TrainCommand)
def train(
    task: Annotated[
        str,
        typer.Argument(help="A task; `weft train --help` lists those that are installed.", metavar="TASK"),
    ],
    data: Annotated[
        list[str], typer.Argument(help="Files or folders, or sample: for built-in data.", metavar="DATA...")
    ],
    out: Annotated[Path | None, typer.Option(help="The run's folder.", metavar="RUN")] = None,
    preset: Annotated[str, typer.Option(help="A preset's name; auto suits model to data and time.")] = "auto",
    settings: Annotated[
        list[str], typer.Option("--set", help="Change one option: a.b=c; may come often.", metavar="A.B=C")
    ] = [],  # noqa: B006
    config: Annotated[Path | None, typer.Option(help="Options from a .toml file.")] = None,
    steps: Annotated[int | None, typer.Option(help="So many steps.")] = None,
    minutes: Annotated[float | None, typer.Option(help="So long; 5 if neither is given.")] = None,
    seed: Annotated[int, typer.Option(help="Everything random follows from it.")] = 0,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --out, to the same bits.")] = False,
    base: Annotated[
        Path | None, typer.Option("--from", help="Train this run on: its model, tokenizer and weights.", metavar="RUN")
    ] = None,
    lora: Annotated[
        int | None, typer.Option(help="With --from: adapters of this rank learn, the weights stay.", metavar="R")
    ] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, mps; the best one if left out.")] = None,
    compiled: Annotated[bool, typer.Option("--compile/--no-compile", help="Train through torch.compile.")] = False,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Also write TensorBoard files.")] = False,
    as_json: AsJson = False,
) -> None:
    """Train a model on your data.

    The time plan measures this machine, picks model, batch and steps to end on time, and is frozen into the run.

    \b
    Examples:
      weft train text book.txt --out runs/book --minutes 5
      weft train translation train.en train.de --out runs/ende --preset nano-gru-additive --steps 2000
      weft train images sample:digits --out runs/digits --set training.rate=0.001
      weft train text letters.txt --from runs/book --lora 8 --out runs/letters
      weft train classification reviews.csv --from runs/minilm --out runs/reviews
      weft train text --help                   every default of a task
    """
    from weft.cli.settings import read_changes
    from weft.cli.train import run_train
    from weft.training.train import TrainRequest

    orders, changes = read_changes(settings, config)
    given = {"preset": preset if preset != "auto" else None, "steps": steps, "minutes": minutes, "device": device}
    given |= {"seed": seed or None, "base": None if base is None else str(base)}
    if lora is not None:
        changes["training.lora"] = lora
    orders.update({name: value for name, value in given.items() if value is not None})
    run_train(
        task, data, out, TrainRequest(changes=changes, resume=resume, compiled=compiled, **orders), tensorboard, as_json
    )


@app.command()
def show(
    preset: Annotated[
        str | None,
        typer.Argument(
            metavar="RUN|PRESET",
            help="A preset's name, a run's folder or a spec file (.json, .toml); none lists all presets.",
        ),
    ] = None,
    length: Annotated[int | None, typer.Option(help="N, the length in tokens; the model's own if left out.")] = None,
    as_json: AsJson = False,
) -> None:
    """What a model is made of and what it costs.

    Parameters, shapes, the matrix products of a block, memory and FLOPs, of any size: nothing large is built.

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
    seconds: Annotated[float, typer.Option(help="So long a training, for both models together.")] = 90.0,
    out: Annotated[Path, typer.Option(help="Where runs and the picture go; a demo before is replaced.")] = Path(
        "weft-demo"
    ),
    as_json: AsJson = False,
) -> None:
    """Train two small models on built-in data and see what they learned.

    A language model reads what comes with Python; a translator learns to read dates. No network is needed.

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
        str | None, typer.Argument(metavar="[RUN|PRESET]", help="A run's folder or a preset's name.")
    ] = None,
    module: Annotated[
        str | None, typer.Option(help="A model of your own: package.module:factory, a function that makes it.")
    ] = None,
    example: Annotated[
        str | None, typer.Option(help="Tokens that it takes, such as 3,1,4; else drawn at random.")
    ] = None,
    causal: Annotated[
        bool | None, typer.Option("--causal/--not-causal", help="Declare whether it looks only back.")
    ] = None,
    positions: Annotated[str | None, typer.Option(help="Declare its positions: none, absolute or relative.")] = None,
    reach: Annotated[int | None, typer.Option(help="Declare how many tokens back it looks, over all layers.")] = None,
    vocabulary: Annotated[int | None, typer.Option(help="Declare how many tokens there are.")] = None,
    compiled: Annotated[bool, typer.Option("--compiled", help="Also compare with torch.compile.")] = False,
    html: Annotated[Path | None, typer.Option(help="Draw the report into this file.")] = None,
    as_json: AsJson = False,
) -> None:
    """Check that a model does what it declares.

    No look ahead, padding, batch company and packing change nothing, the cache equals the full forward, and more.
    Exit code 1 if a declared law is broken.

    \b
    Examples:
      weft laws nano-gpt
      weft laws mixtral-8x7b --json                large presets are judged in small
      weft laws --module my_project.model:build --causal --html laws.html
    """
    from weft.cli.laws import run_laws

    given = {"causal": causal, "positions": positions, "reach": reach, "vocabulary": vocabulary}
    declared = {name: value for name, value in given.items() if value is not None}
    if not run_laws(preset, module, example, declared, as_json, html, compiled):
        raise typer.Exit(FAILED)


def run() -> None:
    """The entry point: `weft ...`."""
    for stream in (sys.stdout, sys.stderr):
        # A terminal that cannot show a sign gets a question mark instead of a traceback.
        stream.reconfigure(errors="replace")  # type: ignore[union-attr]
    try:
        app(prog_name="weft")
    except KeyboardInterrupt:
        print("weft: stopped", file=sys.stderr)
        sys.exit(INTERRUPTED)
