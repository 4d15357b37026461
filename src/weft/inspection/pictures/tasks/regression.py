"""The picture of task regression: tokens by how much is looked at them, who looks at whom, two words' query and key."""

from __future__ import annotations

from typing import Any

from weft.inspection.pictures.inputs import LookInput
from weft.inspection.pictures.look_options import LookOptions
from weft.inspection.pictures.observation import Observation, shortened, watched
from weft.inspection.pictures.panels import Panels, pair_panel
from weft.inspection.pictures.task_picture import TaskPicture
from weft.inspection.pictures.token_panels import read_tokens, token_panels


def observe_regression(run: Any, given: LookInput, how: dict[str, Any]) -> Observation:
    """A text or a pair of texts, and its score."""
    seen, answer = watched(run, given, how)
    words, left_out = read_tokens(run, seen, answer.input)
    name = shortened(answer.input.replace("\t", " | "))
    return Observation(seen, run.task.picture, name, words, said=f"{answer.output:.4g}", left_out=left_out)


def regression_picture(observation: Observation, options: LookOptions) -> Panels:
    """Tokens colored by attention, who looks at whom, and two words' queries and keys."""
    found = token_panels(observation, options)
    return Panels([*found.panels, pair_panel(observation, options)], found.left_out)


PICTURE = TaskPicture("tokens", observe_regression, regression_picture, from_seen=True)
