"""All tasks by name; each file is read when its task is first asked for."""

from __future__ import annotations

import importlib

from weft.foundation.errors import WeftError
from weft.tasks.base import Task

_HOMES = {
    "text": "TextTask",
    "translation": "TranslationTask",
    "classification": "ClassificationTask",
    "tagging": "TaggingTask",
    "images": "ImagesTask",
    "captions": "CaptionsTask",
    "forecast": "ForecastTask",
    "sequences": "SequencesTask",
}


def tasks() -> tuple[str, ...]:
    """The names of all tasks."""
    return tuple(_HOMES)


def task_named(name: str) -> type[Task]:
    """The class of a task."""
    if name not in _HOMES:
        raise WeftError(f"there is no task {name!r}: choose one of {', '.join(_HOMES)}")
    found: type[Task] = getattr(importlib.import_module(f"weft.tasks.{name}"), _HOMES[name])
    return found
