"""The picture of any task: what was seen alone gives tokens, attention and the answer's probabilities.

It draws tasks that declare no picture of their own, and what `seen.show()` was given without an input.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from torch import Tensor

from weft.figures.panels.panel import Panel
from weft.foundation.errors import WeftError
from weft.inspection.pictures.inputs import LookInput
from weft.inspection.pictures.kinds.attention import alignment_panel, has_alignment
from weft.inspection.pictures.kinds.registry import all_attention
from weft.inspection.pictures.labels import input_labels
from weft.inspection.pictures.look_options import LookOptions
from weft.inspection.pictures.observation import ImageObservation, Observation, class_tokens, shortened, watched
from weft.inspection.pictures.panels import Panels, shares_panel, tokens_panel
from weft.inspection.pictures.task_picture import GENERIC, PICTURES, TaskPicture
from weft.inspection.recording.watch import Seen


def observation_of(seen: Seen, call: int = -1, batch: int = 0) -> Observation:
    """An observation from what was seen alone: labels from what went into the embeddings, by the run's own words."""
    run = seen.subject
    own = getattr(getattr(run, "task", None), "picture", None)
    target, source = (input_labels(run, seen.inputs(batch, call, side)) for side in ("target", "source"))
    image = next((x for x in seen.inputs(batch, call).values() if x.dim() == 3 and x.is_floating_point()), None)
    observation = Observation(
        seen,
        own if own is not None and PICTURES[own].from_seen else None,
        _name(target, source),
        tuple(target),
        source=tuple(source),
        # A row writes the token that the next one reads; what the last one wrote was never read.
        written=(*target[1:], "…") if source else (),
        call=call,
        batch=batch,
    )
    spec: Any = getattr(seen.module, "spec", None)
    if image is None or getattr(spec, "family", "") != "vision":
        return observation
    cells = [f"{row},{column}" for row in range(spec.side) for column in range(spec.side)]
    tokens, grid = (*class_tokens(spec.extra), *cells), (spec.side, spec.side)
    return ImageObservation(
        seen, "images", "an image", tokens, call=call, batch=batch, pixels=_pixels(image), grid=grid, first=spec.extra
    )


def _name(target: Sequence[str], source: Sequence[str]) -> str:
    words = list(source or target)
    text = ("" if any(" " in word for word in words) else " ").join(words)
    return text[:60] + ("…" if len(text) > 60 else "") or "what was seen"


def _pixels(image: Tensor) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """[C, H, W] of any scale as bytes [H, W, 3], from its darkest to its brightest."""
    values = image.detach().float().cpu().numpy().transpose(1, 2, 0)
    low, high = float(values.min()), float(values.max())
    shown = np.rint(255 * (values - low) / ((high - low) or 1.0)).astype(np.uint8)
    return np.repeat(shown, 3, axis=2) if shown.shape[2] == 1 else shown[..., :3]


def observe_anything(run: Any, given: LookInput, how: dict[str, Any]) -> Observation:
    """What a run of any task did with an input, and its answer with probabilities by name where it gives them."""
    seen, answer = watched(run, given, how)
    shares = answer.more.get("probabilities")
    observation = observation_of(seen)
    return replace(
        observation,
        picture=observation.picture if isinstance(observation, ImageObservation) else GENERIC,
        name=shortened(given.name),
        said=answer.output if isinstance(answer.output, str) else "",
        shares=shares if isinstance(shares, dict) else {},
        truth=given.truth,
    )


def generic_picture(observation: Observation, options: LookOptions) -> Panels:
    """As far as the model has them: tokens colored by attention, the answer, the alignment, and all attention."""
    panels: list[Panel] = []
    if "self" in observation.kinds and observation.pool is not None:
        panels.append(tokens_panel(observation, options))
    if observation.shares:
        panels.append(shares_panel(observation))
    if has_alignment(observation):
        panels.append(alignment_panel(observation, options))
    found = all_attention(observation, options)
    panels += found.panels
    if not panels:
        raise WeftError("there is nothing to draw: this model has no attention, and its answer no probabilities")
    return Panels(panels, found.left_out)


PICTURE = TaskPicture("overview", observe_anything, generic_picture, from_seen=True)
