"""Held-out examples as `weft look` draws them: what the trained model looked at, and where it was wrong."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

from weft.data.readers.files import existing_path, find_files
from weft.data.readers.images import IMAGE_SUFFIXES
from weft.figures.panels.panel import Panel
from weft.foundation.errors import WeftError
from weft.inspection.pictures.look import look
from weft.inspection.pictures.observation import shortened
from weft.reports.score_panels import worst_examples
from weft.tasks.support.inputs.input_rows import FileExamples, takes_texts
from weft.tasks.task import SAMPLE
from weft.training.result import TrainingResult

LETTERS = 96  # of a text that goes on and on
TOKENS = 64  # about, of a text that is shown
LARGEST_FILE = 50_000_000  # bytes that are read for an example
TRIED = 200  # examples among which a short one is looked for


def example_input(result: TrainingResult, held_out: Sequence[str]) -> Any | None:
    """An example as the run takes it, held out where that is known; None where none is at hand."""
    run, scores = result.run, result.scores
    sources = [*held_out, *run.spec.sources]
    if sources[0].startswith(SAMPLE):
        return f"{sources[0] if sources[0] != SAMPLE else SAMPLE + run.task.name}/0"
    if scores is not None and (takes_texts(run.task) or run.task.continues_input):
        texts = [str(scores.show(number)) for number in range(min(TRIED, len(scores.answers)))]
        if run.task.continues_input:
            return texts[0].strip()[:LETTERS] or None
        return next((text for text in texts if len(text.split()) >= 3 and len(text) < 4 * TOKENS), texts[0])
    path = existing_path(sources[0])
    if path is None or (path.is_file() and path.stat().st_size > LARGEST_FILE):
        return None
    if path.is_dir():
        images = find_files([str(path)], IMAGE_SUFFIXES) if run.task.takes_images else []
        return str(images[0]) if images else None
    return f"{path}#0" if isinstance(run.task, FileExamples) else str(path)


def attention_panels(result: TrainingResult, held_out: Sequence[str]) -> tuple[list[Panel], str]:
    """(what `weft look` draws of an example, and first of the worst error; a sentence if there is nothing)."""
    command = f"weft look {result.run.folder} {result.run.task.example}"
    try:
        given = example_input(result, held_out)
        if given is None:
            return [], f"No example of attention is at hand: {command} draws one."
        panels = _look(result, given, "an example")
        mistake = _worst_text(result)
        if mistake is not None:
            panels += _look(result, mistake, "the worst error")[:1]
    except WeftError as error:
        return [], f"No example of attention could be drawn ({error})."
    return panels, ""


def _look(result: TrainingResult, given: Any, what: str) -> list[Panel]:
    """The panels of one input, whose first says what they are of."""
    picture = look(result.run, given)
    first, *rest = picture.panels
    title = f"{first.title} ({what}: {shortened(picture.title)})"
    return [replace(cast(Any, first), title=title), *rest]


def _worst_text(result: TrainingResult) -> str | None:
    """The input of the worst error, where that is a text of some length."""
    scores = result.scores
    if scores is None or not takes_texts(result.run.task):
        return None
    chosen = worst_examples(scores)
    text = str(scores.show(chosen[0])) if chosen else ""
    return text if 0 < len(text) < 4 * TOKENS else None
