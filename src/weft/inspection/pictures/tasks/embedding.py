"""The picture of task embedding: tokens by how much is looked at them, who looks at whom, two words' query and key."""

from __future__ import annotations

from typing import Any

from weft.inspection.pictures.inputs import LookInput
from weft.inspection.pictures.look_options import LookOptions
from weft.inspection.pictures.observation import Observation, shortened, watched
from weft.inspection.pictures.panels import Panels, pair_panel
from weft.inspection.pictures.task_picture import TaskPicture
from weft.inspection.pictures.token_panels import read_tokens, token_panels


def observe_embedding(run: Any, given: LookInput, how: dict[str, Any]) -> Observation:
    """What an encoder reads when it gives a text its vector."""
    seen, _ = watched(run, given, how)
    words, left_out = read_tokens(run, seen, str(given.value))
    return Observation(seen, run.task.picture, shortened(str(given.value)), words, left_out=left_out)


def embedding_picture(observation: Observation, options: LookOptions) -> Panels:
    """Tokens colored by attention, who looks at whom, and two words' queries and keys."""
    found = token_panels(observation, options)
    return Panels([*found.panels, pair_panel(observation, options)], found.left_out)


PICTURE = TaskPicture("tokens", observe_embedding, embedding_picture, from_seen=True)
