"""The picture of task transcription: the sequence in time, and where in it each written token looks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from weft.data.readers.sounds import HOP, write_sound
from weft.data.readers.transcripts import read_sources
from weft.data.samples import SAMPLE_RATE, SpokenText
from weft.data.tokenizers.tokenizer import Tokenizer
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
    words = words_of_tokens(run.task.tokenizer, observation.said)
    return replace(observation, links=spoken_links(given.truth, words, run.module.spec.source.steps))


def words_of_tokens(tokenizer: Tokenizer, text: str) -> list[int | None]:
    """For each token of a text the number of its word; None for a blank between words."""
    ids = tokenizer.encode(text)
    ends = [len(tokenizer.decode(ids[: place + 1]).split()) - 1 for place in range(len(ids))]
    return [end if tokenizer.decode([number]).strip() else None for number, end in zip(ids, ends, strict=True)]


def spoken_links(truth: SpokenText, words: Sequence[int | None], steps: int) -> Gold:
    """For each token written the source tokens, of `steps` frames each, in which its word is said."""
    frame = HOP * SAMPLE_RATE * steps
    spans = [range(0) if word is None else _tokens_within(truth.spans[word], frame) for word in words]
    return [set(span) for span in spans]


def _tokens_within(span: tuple[int, int], frame: float) -> range:
    return range(int(span[0] // frame), int(span[1] // frame) + 1)


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
