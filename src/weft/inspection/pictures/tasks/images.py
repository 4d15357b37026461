"""The picture of task images: the image lit by attention, the classes, patch filters and positions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from PIL import Image

from weft.data.readers.images import read_image
from weft.figures.panels.overlays import OverlayPanel
from weft.figures.panels.panel import Panel
from weft.foundation.errors import WeftError
from weft.inspection.pictures.inputs import LookInput, SampleExample
from weft.inspection.pictures.kinds.attention import rolled_out
from weft.inspection.pictures.kinds.model import filters_panel, has_filters, has_positions, positions_panel
from weft.inspection.pictures.look_options import LookOptions
from weft.inspection.pictures.observation import ImageObservation, Observation, class_tokens, watched
from weft.inspection.pictures.panels import Panels, by_whom, head_axis, layer_axis, received, shares_panel
from weft.inspection.pictures.task_picture import TaskPicture
from weft.inspection.recording.watch import Seen
from weft.models.vision import VisionSpec

MOST_EXTRA = 5  # class token and registers before the patches of a user's own module


def observe_image(run: Any, given: LookInput, how: dict[str, Any]) -> Observation:
    """An image as the model reads it, and the probabilities of its classes."""
    seen, answer = watched(run, given, how)
    task, (side, extra) = run.task, _layout(run.module.spec, seen)
    pixels = read_image(given.value, task.fitting or task.side, task.channels)
    pixels = np.repeat(pixels, 3, axis=2) if pixels.shape[2] == 1 else pixels
    cells = tuple(f"{row},{column}" for row in range(side) for column in range(side))
    return ImageObservation(
        seen,
        run.task.picture,
        given.name,
        (*class_tokens(extra), *cells),
        said=str(answer.output),
        shares=answer.more["probabilities"],
        truth=given.truth,
        pixels=pixels,
        grid=(side, side),
        first=extra,
    )


def _layout(spec: Any, seen: Seen) -> tuple[int, int]:
    """(patches per side, tokens before them); of a user's own module, as the number of tokens in attention tells."""
    if isinstance(spec, VisionSpec):
        return spec.side, spec.extra
    tokens = seen.sizes()[3]
    side = math.isqrt(tokens)
    if tokens - side**2 > MOST_EXTRA:
        raise WeftError(f"{spec.name} attends over {tokens} tokens, which are no square of patches: use weft.watch")
    return side, tokens - side**2


def image_picture(observation: Observation, options: LookOptions) -> Panels:
    """The image lit by each head and by the rollout, what the model says, filters and positions."""
    assert isinstance(observation, ImageObservation)
    layers, layer = layer_axis(observation, "self", options)
    heads = head_axis(observation, "self", options)
    weights = received(observation, "self", layers, heads)[..., observation.first :]
    maps = weights.reshape(*weights.shape[:2], *observation.grid)
    title = f"Where it looks, by {by_whom(observation).replace('tokens', 'patches')}"
    panels: list[Panel] = [OverlayPanel(title, observation.pixels, maps, (layer, heads)), rolled_out(observation)]
    if observation.shares:
        panels.append(shares_panel(observation))
    if has_filters(observation):
        panels.append(filters_panel(observation, options))
    if has_positions(observation):
        panels.append(positions_panel(observation, options))
    return Panels(panels, [])


def saved_image(chosen: SampleExample) -> str:
    """The path of the example's image, written as a file."""
    pixels = chosen.sample.validation.pixels
    chosen.expect(chosen.number < len(pixels))
    path = chosen.folder / f"{chosen.number}.png"
    Image.fromarray(pixels[chosen.number]).save(path)
    return str(path)


def image_example(run: Any, chosen: SampleExample) -> LookInput:
    """An image and its class."""
    path = saved_image(chosen)
    return LookInput(path, chosen.title, chosen.sample.classes[int(chosen.sample.validation.labels[chosen.number])])


PICTURE = TaskPicture("image", observe_image, image_picture, image_example)
