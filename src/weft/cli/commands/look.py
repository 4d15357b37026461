"""`weft look`: the picture of what a run does with an input."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weft.cli.app import AsJson, Device, Module, app
from weft.cli.environment import load_torch
from weft.cli.factory import find_factory
from weft.cli.generation_options import Question
from weft.foundation.errors import WeftError

if TYPE_CHECKING:
    from rich.console import Console

    from weft.figures.panels.attention_steps import AttentionStepsPanel
    from weft.figures.picture import Picture
    from weft.inspection.pictures.look_options import LookOptions
    from weft.inspection.pictures.observation import Observation
    from weft.runs.run import Run


@app.command()
def look(
    run: Annotated[Path, typer.Argument(help="Folder of a run; for --kind scale also a preset.", metavar="RUN")],
    given: Annotated[
        str | None,
        typer.Argument(
            help="Text, path of an image, table or sequence, FILE#N for row or example N of a file, or sample:NAME/N "
            "for a validation example; N counts from 0.",
            metavar="INPUT",
        ),
    ] = None,
    out: Annotated[
        Path, typer.Option(help="File to write: a page (.html) or an image (.png, .svg).", metavar="FILE")
    ] = Path("look.html"),
    kind: Annotated[str | None, typer.Option(help="Kind of picture, if not the task's own.")] = None,
    layer: Annotated[int | None, typer.Option(help="Layer to show first, from 0.")] = None,
    head: Annotated[int | None, typer.Option(help="Head to show first, from 0.")] = None,
    row: Annotated[str | None, typer.Option(help="Token whose attention is shown: its text or its number.")] = None,
    pair: Annotated[str | None, typer.Option(help="Two words whose query and key are compared.", metavar="A,B")] = None,
    explain: Annotated[bool, typer.Option("--explain", help="Explain one attention output number by number.")] = False,
    question: Question = None,
    steps: Annotated[int, typer.Option(help="Training steps of each curve of --kind scale; 0 for none.")] = 200,
    module: Module = None,
    device: Device = None,
    as_json: AsJson = False,
) -> None:
    """Draw what a model looks at: attention, alignment, rollout or filters, as a page or an image.

    The page is a single file that needs no network: choose layers and heads in it, and point at cells for their values.
    Kinds, as far as a run has them: attention, alignment, pair, rollout, flow, statistics, effects, lens, residuals,
    routing, next, loss, reach, filters, positions, explain. Without an input, of a run or a preset: scale.

    \b
    Examples:
      weft look runs/book "Once upon a time" --out book.html
      weft look runs/ende "A dog runs." --out alignment.png
      weft look runs/opinions "the film was not terrible" --pair not,terrible
      weft look runs/digits seven.png --kind rollout --out rollout.svg
      weft look runs/digits data.npz#3         the fourth image; rows of a table in the same way: table.csv#17
      weft look runs/book "Once upon" --explain --layer 2 --head 1 --row upon
      weft look gpt2 --kind scale --out scale.png
    """
    load_torch()
    from weft.checkpoints.sample_runs import locate_run
    from weft.inspection.pictures.kinds.registry import SPEC_PICTURE_KINDS
    from weft.inspection.pictures.look_options import LookOptions, parse_pair
    from weft.models.presets import presets

    options = LookOptions(kind, layer, head, row, parse_pair(pair), explain, steps)
    if kind in SPEC_PICTURE_KINDS and given is not None:
        raise WeftError(f"--kind {kind} shows a model before training, without an input: leave {given!r:.40} out")
    if given is None and kind not in SPEC_PICTURE_KINDS and locate_run(run).is_dir():
        raise WeftError(f"there is no input for {run} to look at: give one after it, such as a text or sample:")
    if given is None or (str(run) in presets() and not run.exists()):
        run_look_at_spec(str(run), out, options, as_json)
    else:
        how = {} if question is None else {"question": question}
        run_look(run, given, out, options, device, as_json, module, how)


def run_look_at_spec(source: str, out: Path, options: LookOptions, as_json: bool) -> None:
    """Draw a model before training, and say where the picture is."""
    from weft.cli.commands.show import find_spec
    from weft.cli.terminal import console, print_json, progress
    from weft.inspection.pictures.look import look_at_spec

    with progress(f"--kind {options.kind}") as report:
        picture = look_at_spec(find_spec(source), source, options, report)
    written = picture.write(out)
    if as_json:
        print_json({"path": str(written), "bytes": written.stat().st_size, **_panels(picture)})
        return
    _print_panels(console(), picture, written)


def run_look(
    run: Path,
    given: str,
    out: Path,
    options: LookOptions,
    device: str | None,
    as_json: bool,
    module: str | None = None,
    how: dict[str, Any] | None = None,
) -> None:
    """Draw, and say where the picture is; `how` goes to the run's `answer`."""
    from weft.cli.terminal import print_json
    from weft.foundation.files.atomic_files import expect_other_file
    from weft.inspection.pictures.inputs import file_and_number
    from weft.inspection.pictures.look import observe, picture_of
    from weft.runs.run import load

    numbered = file_and_number(given)
    expect_other_file(out, [given if numbered is None else numbered[0]])
    opened = load(run, device, module=find_factory(module))
    observation = observe(opened, given if numbered is not None else _one_input(opened, given), **(how or {}))
    picture = picture_of(observation, options)
    written = picture.write(out)
    if as_json:
        print_json(_tree(observation, picture, written))
    else:
        _print(observation, picture, written)


def _one_input(run: Run, given: str) -> str:
    """The input itself; of a text file the text in it. A table has many."""
    import sys

    from weft.data.readers.tables import TableOptions
    from weft.tasks.support.inputs.input_rows import open_inputs, takes_texts

    if not takes_texts(run.task):
        return given
    found, notes = open_inputs(run.task, [given], TableOptions())
    if len(found) != 1:
        raise WeftError(f"{given} has {len(found):,} rows: look at one of them, such as {given}#0")
    for note in notes:
        sys.stderr.write(f"note: {note}\n")
    return found[0]


def _tree(observation: Observation, picture: Picture, written: Path) -> dict[str, object]:
    from weft.figures.panels.attention_steps import AttentionStepsPanel
    from weft.inspection.pictures.look import kinds_of

    return {
        "path": str(written),
        "bytes": written.stat().st_size,
        "task": "" if observation.task is None else observation.task.name,
        "input": observation.name,
        "output": observation.said,
        "tokens": list(observation.tokens),
        **_panels(picture),
        "kinds": list(kinds_of(observation)),
        "explained": [_steps(panel) for panel in picture.panels if isinstance(panel, AttentionStepsPanel)],
    }


def _panels(picture: Picture) -> dict[str, object]:
    panels = [{"kind": panel.kind, "title": panel.title, "shown": panel.shown()} for panel in picture.panels]
    return {"panels": panels, "left_out": list(picture.left_out)}


def _steps(panel: AttentionStepsPanel) -> list[dict[str, object]]:
    return [
        {"name": step.name, "formula": step.formula, "part": step.part, "values": step.values.tolist()}
        for step in panel.steps
    ]


def _print(observation: Observation, picture: Picture, written: Path) -> None:
    from weft.cli.terminal import console
    from weft.inspection.pictures.look import kinds_of

    out = console()
    _print_panels(out, picture, written)
    out.print(f"other kinds: --kind {', '.join(kinds_of(observation))}", markup=False, soft_wrap=True)


def _print_panels(out: Console, picture: Picture, written: Path) -> None:
    from rich.markup import escape

    from weft.cli.terminal import in_bytes
    from weft.figures.panels.attention_steps import AttentionStepsPanel, steps_text

    out.print(f"[bold]{escape(picture.title)}[/bold]", soft_wrap=True)
    for panel in picture.panels:
        shown = panel.shown()
        out.print(f"  {panel.title}" + (f" ({shown})" if shown else ""), markup=False, soft_wrap=True)
        if isinstance(panel, AttentionStepsPanel):
            out.print(steps_text(panel.steps), markup=False, soft_wrap=True)
    for sentence in picture.left_out:
        out.print(f"  left out: {sentence}", markup=False, soft_wrap=True)
    out.print(f"\npicture: {written} ({in_bytes(written.stat().st_size)})", markup=False, soft_wrap=True)
