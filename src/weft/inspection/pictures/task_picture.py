"""What a task's own picture is, and how it is found: by the name that the task declares as `picture`.

A package that adds a task may add a picture for it in the same way:

    [project.entry-points."weft.pictures"]
    parity = "my_package.parity_picture:PICTURE"
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from weft.foundation.plugins import Registry
from weft.inspection.pictures.inputs import ExampleInput, LookInput
from weft.inspection.pictures.look_options import LookOptions
from weft.inspection.pictures.observation import Observation
from weft.inspection.pictures.panels import Panels

GENERIC = "generic"  # of tasks that declare no picture


@dataclass(frozen=True)
class TaskPicture:
    """How an input is shown to a run under watch, and how what was seen is drawn.

    `kind` is its name for `--kind`. `example` makes an input of an example of a built-in sample. `from_seen`: it can
    also be drawn from what was seen alone, without the input (`seen.show()`).
    """

    kind: str
    observe: Callable[[Any, LookInput, dict[str, Any]], Observation]
    draw: Callable[[Observation, LookOptions], Panels]
    example: ExampleInput | None = None
    from_seen: bool = False


PICTURES: Registry[TaskPicture] = Registry(
    "weft.pictures",
    "picture",
    {
        info.name: f"weft.inspection.pictures.tasks.{info.name}:PICTURE"
        for info in pkgutil.iter_modules([str(Path(__file__).parent / "tasks")])
    }
    | {GENERIC: "weft.inspection.pictures.generic:PICTURE"},
)
