"""The picture of task tagging: words with their tags, colored by attention, and who looks at whom."""

from __future__ import annotations

from typing import Any

import numpy as np

from weft.inspection.pictures.inputs import LookInput, SampleExample
from weft.inspection.pictures.labels import input_labels
from weft.inspection.pictures.look_options import LookOptions
from weft.inspection.pictures.observation import Observation, shortened, watched
from weft.inspection.pictures.panels import Panels, pair_panel
from weft.inspection.pictures.task_picture import TaskPicture
from weft.inspection.pictures.token_panels import token_panels


def observe_tagging(run: Any, given: LookInput, how: dict[str, Any]) -> Observation:
    """A tag stands at the first piece of its word; of a long sentence the first piece is shown."""
    seen, answer = watched(run, given, how)
    words = tuple(answer.more["tokens"])
    tags = list(zip(answer.output, answer.more["probabilities"], strict=True))
    split = run.task.encoder.make_split([words], [np.arange(len(words))]).cut(run.module.spec.length)
    shown = split.answers(0)  # the words of the first call; a longer sentence takes several
    left_out = (f"All but the first {len(shown):,} of {len(words):,} words.",) if len(words) > len(shown) else ()
    tokens = words[: len(shown)] if run.task.tokenizer is None else tuple(input_labels(run, seen.inputs(call=0)))
    placed = tuple(tags[word] if word >= 0 else ("", 0.0) for word in split.labels[0].tolist())
    return Observation(
        seen,
        run.task.picture,
        shortened(" ".join(words)),
        tokens,
        tags=placed,
        truth=given.truth,
        left_out=left_out,
        call=0,
    )


def tagging_picture(observation: Observation, options: LookOptions) -> Panels:
    """Words colored by attention with their tags, who looks at whom, and two words' query and key if asked for."""
    found = token_panels(observation, options)
    pair = [] if options.pair is None else [pair_panel(observation, options)]
    return Panels([*found.panels, *pair], found.left_out)


def tagging_example(run: Any, chosen: SampleExample) -> LookInput:
    """A sentence and its tags."""
    words, tags = chosen.row()
    return LookInput(list(words), chosen.title, tags)


PICTURE = TaskPicture("tokens", observe_tagging, tagging_picture, tagging_example, from_seen=True)
