"""`weft look`: the picture of what a run does with an input."""

from __future__ import annotations

from pathlib import Path

from rich.markup import escape

from weft.cli.terminal import console, in_bytes, print_json
from weft.figures.panels.attention_steps import AttentionStepsPanel, steps_text
from weft.figures.picture import Picture
from weft.inspection.pictures.look import kinds_of, observe, picture_of
from weft.inspection.pictures.look_options import LookOptions
from weft.inspection.pictures.observation import Observation
from weft.runs.run import load


def run_look(run: Path, given: str, out: Path, options: LookOptions, device: str | None, as_json: bool) -> None:
    """Draw, and say where the picture is."""
    observation = observe(load(run, device), given)
    picture = picture_of(observation, options)
    written = picture.write(out)
    if as_json:
        print_json(_tree(observation, picture, written))
    else:
        _print(observation, picture, written)


def _tree(observation: Observation, picture: Picture, written: Path) -> dict[str, object]:
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
