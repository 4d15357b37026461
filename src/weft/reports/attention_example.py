"""One held-out example as `weft look` draws it: what the trained model looked at."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from weft.data.readers.files import existing_path, find_files
from weft.data.readers.images import IMAGE_SUFFIXES
from weft.figures.panels.panel import Panel
from weft.foundation.errors import WeftError
from weft.inspection.pictures.look import look
from weft.tasks.support.inputs.input_rows import FileExamples, takes_texts
from weft.tasks.task import SAMPLE
from weft.training.result import TrainingResult

LETTERS = 96  # of a text that goes on and on
TOKENS = 64  # about, of a text that is shown
TRIED = 200  # examples among which a short one is looked for


def example_input(result: TrainingResult, held_out: Sequence[str]) -> Any | None:
    """A held-out example as the run takes it; None where none is at hand."""
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
    if path is None:
        return None
    if run.task.takes_images:
        images = find_files([str(path)], IMAGE_SUFFIXES) if path.is_dir() else []
        return str(images[0]) if images else None
    return f"{path}#0" if isinstance(run.task, FileExamples) and path.is_file() else str(path)


def attention_panels(result: TrainingResult, held_out: Sequence[str]) -> tuple[list[Panel], str]:
    """(what `weft look` draws of one example, a sentence if there is nothing)."""
    command = f"weft look {result.run.folder} {result.run.task.example}"
    try:
        given = example_input(result, held_out)
        if given is None:
            return [], f"No example of attention is at hand: {command} draws one."
        picture = look(result.run, given)
    except WeftError as error:
        return [], f"No example of attention could be drawn ({error})."
    return list(picture.panels), ""
