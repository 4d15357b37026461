"""The picture of task image-text-embedding: what the tower that read the input looks at.

An image is lit by attention, with the tower's patch filters and positions; a text's tokens are colored by it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from weft.data.readers.images import read_image
from weft.foundation.errors import WeftError
from weft.inspection.pictures.inputs import LookInput
from weft.inspection.pictures.look_options import LookOptions
from weft.inspection.pictures.observation import ImageObservation, Observation, class_tokens, shortened
from weft.inspection.pictures.panels import Panels, pair_panel
from weft.inspection.pictures.task_picture import TaskPicture
from weft.inspection.pictures.tasks.images import image_picture
from weft.inspection.pictures.token_panels import read_tokens, token_panels
from weft.inspection.recording.watch import watch
from weft.tasks.imported.image_text_embedding import is_image


def observe_either(run: Any, given: LookInput, how: dict[str, Any]) -> Observation:
    """An image or a text as its own tower reads it: what is watched is a run of that tower alone."""
    image = is_image(given.value)
    tower = replace(run, module=run.module.image if image else run.module.text)
    with watch(tower, keep=None) as seen:
        answers = run.answer([given.value], **how)
    if len(answers) != 1:
        raise WeftError(f"{given.name} holds {len(answers)} inputs: look at one of them at a time")
    if not image:
        words, left_out = read_tokens(tower, seen, str(given.value))
        return Observation(seen, run.task.picture, shortened(str(given.value)), words, left_out=left_out)
    spec, shares = tower.module.spec, answers[0].more.get("probabilities", {})
    return ImageObservation(
        seen,
        run.task.picture,
        given.name,
        (*class_tokens(spec.extra), *(f"{row},{column}" for row in range(spec.side) for column in range(spec.side))),
        said=str(answers[0].output) if shares else "",
        shares=shares,
        pixels=read_image(given.value, run.task.fitting),
        grid=(spec.side, spec.side),
        first=spec.extra,
    )


def either_picture(observation: Observation, options: LookOptions) -> Panels:
    """The image lit by each head and by the rollout; or tokens by attention and two words' queries and keys."""
    if isinstance(observation, ImageObservation):
        return image_picture(observation, options)
    found = token_panels(observation, options)
    return Panels([*found.panels, pair_panel(observation, options)], found.left_out)


PICTURE = TaskPicture("overview", observe_either, either_picture)
