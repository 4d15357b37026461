"""`weft demo`: trains a language model and a translator on built-in data, then shows what they learned."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weft.cli.app import AsJson, app
from weft.foundation.errors import WeftError

if TYPE_CHECKING:
    from rich.console import Console

    from weft.checkpoints.run_folder import RunFolder
    from weft.tasks.task import Answer
    from weft.training.request import TrainRequest
    from weft.training.result import TrainingResult


TEXT, DATES, TRANSLATOR = "sample:stdlib", "sample:dates", "nano-gru-additive"
# On a slow machine the translator takes longer than planned: with fewer steps no date is right.
SMALLER = {"width": 64, "hidden": 96, "training.least_steps": 400}
PROMPT, QUESTION = "def read(self, ", "raise ValueErr"
CONTINUATION, SHOWN, TOP = 200, 5, 6
LONGEST = 24 * 3600
MARK = ".weft-demo"  # names a run's folder as the demo's own


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
    run_demo(seconds, out, as_json)


@dataclass(frozen=True)
class Shown:
    """What the two models do after training."""

    text: TrainingResult
    continuation: Answer
    expected: dict[str, float]
    translation: TrainingResult
    translations: list[tuple[Answer, str]]
    picture: Path


def run_demo(seconds: float, out: Path, as_json: bool) -> None:
    """Train both for `seconds` together, then print continuations, translations and the path of a picture."""
    from weft.cli.terminal import console, print_json
    from weft.training.request import TrainRequest

    if not 0 < seconds <= LONGEST:
        raise WeftError(f"{seconds:g} seconds of training: choose more than 0 and at most {LONGEST}")
    minutes = seconds / 120  # for each of the two
    text = _train(TrainRequest("text", (TEXT,), out / "text", minutes=minutes))
    translation = _train(
        TrainRequest("translation", (DATES,), out / "translation", preset=TRANSLATOR, changes=SMALLER, minutes=minutes)
    )
    shown = _look(text, translation, out)
    if as_json:
        print_json(_tree(shown))
    else:
        _print(console(), shown, out)


def _train(request: TrainRequest) -> TrainingResult:
    """Train, in place of the run of an earlier demo."""
    from weft.checkpoints.run_folder import RunFolder
    from weft.cli.commands.train import draw_training
    from weft.cli.reporter import TerminalReporter
    from weft.reports.report import report_training
    from weft.training.train import run_training

    _make_room(RunFolder(request.out))
    with TerminalReporter(f"{request.task}: {request.data[0]}") as reporter:
        result = run_training(request, reporter)
        assert result is not None  # one process
        report_training(request, result, reporter)
    draw_training(request.out, result)
    return result


def _make_room(folder: RunFolder) -> None:
    """An empty folder with the demo's mark: the run of an earlier demo is removed, a run of the user's never."""
    from weft.foundation.files.atomic_files import write_text

    mark = folder.path / MARK
    if folder.exists and not mark.is_file():
        raise WeftError(f"{folder.path} holds a run that is not of a demo: choose another --out")
    folder.expect_usable()
    with folder.hold():
        for left in folder.path.iterdir() if mark.is_file() else ():
            if left.is_dir():
                shutil.rmtree(left)
            elif left.name != ".lock":
                left.unlink()
        write_text(mark, "A run of `weft demo`: the next demo in this folder replaces it.\n")


def _look(text: TrainingResult, translation: TrainingResult, out: Path) -> Shown:
    from weft.data.samples import sample

    [continuation] = text.run.answer([PROMPT], max_tokens=CONTINUATION, temperature=0.6)
    [question] = text.run.answer([QUESTION], max_tokens=1)
    pairs = sample("dates").validation[:SHOWN]
    answers = translation.run.answer([pair.source for pair in pairs])
    picture = out / "alignment.png"
    longest = max(answers, key=lambda answer: len(answer.input))
    _draw(longest, picture)
    told = [(answer, pair.target) for answer, pair in zip(answers, pairs, strict=True)]
    return Shown(text, continuation, question.more["probabilities"], translation, told, picture)


def _draw(answer: Answer, picture: Path) -> None:
    """The alignment, source x target: what each letter of the answer attended to."""
    from weft.figures.canvas import save_figure
    from weft.figures.charts.alignments import alignment_figure

    more = answer.more
    title = f"{answer.input} -> {answer.output}"
    save_figure(alignment_figure(more["alignment"], more["source_tokens"], more["tokens"], title), picture)


def _tree(shown: Shown) -> dict[str, Any]:
    return {
        "text": {
            "run": str(shown.text.run.folder),
            "loss": shown.text.loss,
            "steps": shown.text.steps,
            "seconds": round(shown.text.seconds, 3),
            "continuation": shown.continuation.output,
            "expected": shown.expected,
        },
        "translation": {
            "run": str(shown.translation.run.folder),
            "metrics": shown.translation.metrics,
            "steps": shown.translation.steps,
            "seconds": round(shown.translation.seconds, 3),
            "examples": [
                {"input": answer.input, "output": answer.output, "truth": truth} for answer, truth in shown.translations
            ],
        },
        "picture": str(shown.picture),
    }


def _print(out: Console, shown: Shown, folder: Path) -> None:
    from rich.markup import escape

    from weft.cli.terminal import bars

    text, translation = shown.text, shown.translation
    out.print(
        f"\n[bold]A decoder of {text.plan.parameters:,} parameters was trained on Python's documentation and sources"
        f"[/bold] for {text.seconds:.0f} s.\nValidation loss: {text.loss:.2f} nats per character, "
        f"{text.metrics['bits_per_byte']:.2f} bits per byte."
    )
    out.print(f"\nIts continuation of {PROMPT!r}:", markup=False)
    out.print(f"{PROMPT}{shown.continuation.output}", markup=False, soft_wrap=True)
    out.print(f"\nMost probable after {QUESTION!r}:", markup=False)
    ranked = sorted(shown.expected.items(), key=lambda item: -item[1])[:TOP]
    out.print(bars([(repr(piece), share) for piece, share in ranked]), markup=False)
    out.print(
        f"\n[bold]A recurrent translator with attention, {translation.plan.parameters:,} parameters, was trained "
        f"on dates[/bold] for {translation.seconds:.0f} s: "
        f"{translation.metrics['exact_match']:.0%} of new ones are right."
    )
    for answer, truth in shown.translations:
        verdict = "" if answer.output == truth else f"   (right: {truth})"
        out.print(f"  {answer.input:<34} -> {answer.output}{verdict}", markup=False)
    out.print(f"\nWhat it attended to for each letter: {escape(str(shown.picture))}")
    out.print("\n[bold]What next[/bold]")
    for command, why in (
        (f'weft predict {folder / "text"} "import "', "let it write"),
        (f"weft predict {folder / 'translation'} 'the 3rd of May 1987'", "let it translate"),
        (f"weft laws {folder / 'text'}", "check that it does not look ahead, and other laws"),
        ("weft train text YOUR.txt --out runs/mine --minutes 5", "your own text"),
        ("weft train images sample:digits --out runs/digits", "another task"),
    ):
        out.print(f"  {command:<58} {why}", markup=False, soft_wrap=True)
