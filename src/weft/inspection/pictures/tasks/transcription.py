"""The picture of task transcription: the sequence in time, and where in it each written token looks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from weft.data.readers.sounds import HOP, write_sound
from weft.data.readers.transcripts import read_sources
from weft.data.samples import SAMPLE_RATE, SpokenText
from weft.figures.panels.panel import Axis
from weft.figures.panels.series import ChannelsPanel
from weft.inspection.analysis.alignment import Gold
from weft.inspection.pictures.inputs import LookInput, SampleExample
from weft.inspection.pictures.kinds.attention import alignment_panel
from weft.inspection.pictures.look_options import LookOptions
from weft.inspection.pictures.observation import Observation, shortened, watched
from weft.inspection.pictures.panels import Array, Panels, attention_panel
from weft.inspection.pictures.task_picture import TaskPicture


@dataclass(frozen=True)
class TranscriptObservation(Observation):
    """The vectors in time [T, C] that were read."""

    values: Array = field(default_factory=lambda: np.zeros((1, 1), np.float32))


def observe_transcription(run: Any, given: LookInput, how: dict[str, Any]) -> Observation:
    """The whole generation, one row per token written; source tokens are labeled by when they begin."""
    seen, answer = watched(run, given, how)
    pieces = run.task.tokenizer.pieces
    written = (*answer.more["tokens"], *pieces([run.task.ends.stop]))
    observation = TranscriptObservation(
        seen,
        run.task.picture,
        shortened(given.name),
        (*pieces([run.task.ends.start]), *answer.more["tokens"]),
        source=tuple(answer.more["source_tokens"]),
        written=written,
        said=str(answer.output),
        truth=given.truth,
        values=read_sources([given.value]).values[0],
    )
    if not isinstance(given.truth, SpokenText) or observation.said != given.truth.text:
        return observation
    steps = run.module.spec.source.steps
    return replace(observation, links=spoken_links(given.truth, answer.more["tokens"], observation.source, steps))


def spoken_links(truth: SpokenText, written: Sequence[str], source: Sequence[str], steps: int) -> Gold:
    """For each token written the source tokens in which its word is said; none for the blanks between words."""
    frames = [HOP * SAMPLE_RATE * steps * token for token in range(len(source) + 1)]
    links, text = [], ""
    for piece in written:
        text += piece
        word = len(text.split()) - 1
        blank = not piece.strip() or not 0 <= word < len(truth.spans)
        first, last = (0, -1) if blank else truth.spans[word]
        links.append({token for token in range(len(source)) if frames[token] <= last and first < frames[token + 1]})
    return links


def transcription_picture(observation: Observation, options: LookOptions) -> Panels:
    """The sequence with the looks of each token below, the alignment, and all maps that it comes from."""
    assert isinstance(observation, TranscriptObservation)
    aligned = alignment_panel(observation, options)
    names = tuple(f"channel {number}" for number in range(observation.values.shape[1]))
    chosen = ", ".join(f"{axis.name} {axis.options[axis.chosen]}" for axis in aligned.choices)
    drawn = ChannelsPanel(
        f"The sequence, and where each token written looks ({chosen})",
        observation.values,
        names,
        np.ascontiguousarray(aligned.chosen()),
        (Axis("written", aligned.rows),),
    )
    maps, left_out = attention_panel(observation, "cross", options)
    return Panels([drawn, aligned, maps], left_out)


def transcription_example(run: Any, chosen: SampleExample) -> LookInput:
    """A sound in a file; the example itself knows what is said, and when."""
    one = chosen.row()
    path = chosen.folder / f"{chosen.number}.wav"
    write_sound(path, one.samples, SAMPLE_RATE)
    return LookInput(str(path), chosen.title, one)


PICTURE = TaskPicture("alignment", observe_transcription, transcription_picture, transcription_example)
