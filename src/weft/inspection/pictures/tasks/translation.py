"""The picture of task translation: which source token each written token looks at."""

from __future__ import annotations

from typing import Any

from weft.inspection.pictures.inputs import LookInput, SampleExample
from weft.inspection.pictures.kinds.attention import alignment_panel
from weft.inspection.pictures.look_options import LookOptions
from weft.inspection.pictures.observation import Observation, shortened, watched
from weft.inspection.pictures.panels import Panels, attention_panel
from weft.inspection.pictures.task_picture import TaskPicture
from weft.inspection.recording.attention_records import Kind


def observe_translation(run: Any, given: LookInput, how: dict[str, Any]) -> Observation:
    """The whole generation, one row per token written."""
    seen, answer = watched(run, given, how)
    tokenizer = run.task.tokenizer
    written = (*answer.more["tokens"], *tokenizer.target.pieces([run.task.ends.stop]))
    start = tokenizer.target.pieces([run.task.ends.start])
    return Observation(
        seen,
        run.task.picture,
        shortened(given.name),
        (*start, *answer.more["tokens"]),
        source=tuple(answer.more["source_tokens"]),
        written=written,
        said=str(answer.output),
        truth=given.truth,
    )


def translation_picture(observation: Observation, options: LookOptions) -> Panels:
    """The alignment, and all maps that it comes from."""
    kind: Kind = "alignment" if "alignment" in observation.kinds else "cross"
    panel, left_out = attention_panel(observation, kind, options)
    more = [] if kind == "alignment" else [panel]
    return Panels([alignment_panel(observation, options), *more], left_out)


def translation_example(run: Any, chosen: SampleExample) -> LookInput:
    """The source of a pair; the pair itself knows what is right."""
    pair = chosen.row()
    return LookInput(pair.source, pair.source, pair)


PICTURE = TaskPicture("alignment", observe_translation, translation_picture, translation_example, from_seen=True)
