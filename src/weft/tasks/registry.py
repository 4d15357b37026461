"""All tasks by name; each file is read when its task is first asked for."""

from __future__ import annotations

import importlib

from weft.foundation.errors import WeftError
from weft.tasks.names import IMPORTED, TASKS
from weft.tasks.task import Task


def tasks() -> tuple[str, ...]:
    """The names of all tasks."""
    return tuple(TASKS)


def task_named(name: str) -> type[Task]:
    """The class of a task."""
    known = TASKS | IMPORTED
    if name not in known:
        raise WeftError(f"there is no task {name!r}: choose one of {', '.join(TASKS)}")
    found: type[Task] = getattr(importlib.import_module(f"weft.tasks.{name}"), known[name])
    return found
