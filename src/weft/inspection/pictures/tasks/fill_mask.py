"""The picture of task fill-mask: tokens with what fills the masks, the likeliest fillings, who looks at whom."""

from __future__ import annotations

from typing import Any

from weft.inspection.pictures.inputs import LookInput
from weft.inspection.pictures.look_options import LookOptions
from weft.inspection.pictures.observation import Observation, shortened, watched
from weft.inspection.pictures.panels import Panels, pair_panel
from weft.inspection.pictures.task_picture import TaskPicture
from weft.inspection.pictures.token_panels import read_tokens, token_panels


def observe_fill_mask(run: Any, given: LookInput, how: dict[str, Any]) -> Observation:
    """A text with masks; each mask is tagged with its likeliest filling, the first one's fillings are the shares."""
    seen, answer = watched(run, given, how)
    found = answer.more["probabilities"]
    tables = [found] if isinstance(found, dict) else found
    words, left_out = read_tokens(run, seen, str(given.value))
    ids = next(x for x in seen.inputs().values() if not x.is_floating_point() and x.dim() == 1).tolist()
    best = iter([next(iter(table.items())) for table in tables])
    tags = tuple(next(best) if index == run.task.mask else ("", 0.0) for index in ids)
    return Observation(
        seen,
        run.task.picture,
        shortened(str(given.value)),
        words,
        said=answer.output,
        shares=tables[0],
        tags=tags,
        left_out=left_out,
    )


def fill_mask_picture(observation: Observation, options: LookOptions) -> Panels:
    """Tokens with their fillings, the first mask's likeliest tokens, who looks at whom, two words' query and key."""
    found = token_panels(observation, options)
    return Panels([*found.panels, pair_panel(observation, options)], found.left_out)


PICTURE = TaskPicture("tokens", observe_fill_mask, fill_mask_picture, from_seen=True)
