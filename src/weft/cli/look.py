"""`weft look`: the picture of what a run does with an input."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from weft.cli.app import AsJson, Device, app

if TYPE_CHECKING:
    from weft.figures.panels.attention_steps import AttentionStepsPanel
    from weft.figures.picture import Picture
    from weft.inspection.pictures.look_options import LookOptions
    from weft.inspection.pictures.observation import Observation


@app.command()
def look(
    run: Annotated[Path, typer.Argument(help="Folder of a run.", metavar="RUN")],
    given: Annotated[
        str,
        typer.Argument(
            help="Text, path of an image, table or sequence, or sample:NAME/N for a validation example.",
            metavar="INPUT",
        ),
    ],
    out: Annotated[
        Path, typer.Option(help="File to write: a page (.html) or an image (.png, .svg).", metavar="FILE")
    ] = Path("look.html"),
    kind: Annotated[str | None, typer.Option(help="Kind of picture, if not the task's own.")] = None,
    layer: Annotated[int | None, typer.Option(help="Layer to show first, from 0.")] = None,
    head: Annotated[int | None, typer.Option(help="Head to show first, from 0.")] = None,
    row: Annotated[str | None, typer.Option(help="Token whose attention is shown: its text or its number.")] = None,
    pair: Annotated[str | None, typer.Option(help="Two words whose query and key are compared.", metavar="A,B")] = None,
    explain: Annotated[bool, typer.Option("--explain", help="Explain one attention output number by number.")] = False,
    device: Device = None,
    as_json: AsJson = False,
) -> None:
    """Draw what a model looks at: attention, alignment, rollout or filters, as a page or an image.

    The page is a single file that needs no network: choose layers and heads in it, and point at cells for their values.
    Kinds, as far as a run has them: attention, alignment, pair, rollout, flow, statistics, effects, lens, residuals,
    routing, next, loss, reach, filters, positions, explain.

    \b
    Examples:
      weft look runs/book "Once upon a time" --out book.html
      weft look runs/ende "A dog runs." --out alignment.png
      weft look runs/opinions "the film was not terrible" --pair not,terrible
      weft look runs/digits seven.png --kind rollout --out rollout.svg
      weft look runs/book "Once upon" --explain --layer 2 --head 1 --row upon
    """
    from weft.inspection.pictures.look_options import LookOptions, parse_pair

    options = LookOptions(kind, layer, head, row, parse_pair(pair), explain)
    run_look(run, given, out, options, device, as_json)


def run_look(run: Path, given: str, out: Path, options: LookOptions, device: str | None, as_json: bool) -> None:
    """Draw, and say where the picture is."""
    from weft.cli.terminal import print_json
    from weft.foundation.atomic_files import expect_other_file
    from weft.inspection.pictures.look import observe, picture_of
    from weft.runs.run import load

    expect_other_file(out, [given])
    observation = observe(load(run, device), given)
    picture = picture_of(observation, options)
    written = picture.write(out)
    if as_json:
        print_json(_tree(observation, picture, written))
    else:
        _print(observation, picture, written)


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
        "panels": [{"kind": panel.kind, "title": panel.title, "shown": panel.shown()} for panel in picture.panels],
        "left_out": list(picture.left_out),
        "kinds": list(kinds_of(observation)),
        "explained": [_steps(panel) for panel in picture.panels if isinstance(panel, AttentionStepsPanel)],
    }


def _steps(panel: AttentionStepsPanel) -> list[dict[str, object]]:
    return [
        {"name": step.name, "formula": step.formula, "part": step.part, "values": step.values.tolist()}
        for step in panel.steps
    ]


def _print(observation: Observation, picture: Picture, written: Path) -> None:
    from rich.markup import escape

    from weft.cli.terminal import console, in_bytes
    from weft.figures.panels.attention_steps import AttentionStepsPanel, steps_text
    from weft.inspection.pictures.look import kinds_of

    out = console()
    out.print(f"[bold]{escape(picture.title)}[/bold]", soft_wrap=True)
    for panel in picture.panels:
        shown = panel.shown()
        out.print(f"  {panel.title}" + (f" ({shown})" if shown else ""), markup=False, soft_wrap=True)
        if isinstance(panel, AttentionStepsPanel):
            out.print(steps_text(panel.steps), markup=False, soft_wrap=True)
    for sentence in picture.left_out:
        out.print(f"  left out: {sentence}", markup=False, soft_wrap=True)
    out.print(f"\npicture: {written} ({in_bytes(written.stat().st_size)})", markup=False, soft_wrap=True)
    out.print(f"other kinds: --kind {', '.join(kinds_of(observation))}", markup=False, soft_wrap=True)
