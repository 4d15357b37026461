"""All tasks by name: Weft's own, and those that installed packages add by the entry-point group `weft.tasks`.

Names are known without loading any task. Adding a task to Weft is one file in this folder and one line here; a package
of its own adds the line to its pyproject.toml:

    [project.entry-points."weft.tasks"]
    parity = "my_package.parity:ParityTask"
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.foundation.errors import WeftError
from weft.foundation.plugins import Registry

if TYPE_CHECKING:
    from weft.tasks.task import Task

TASKS: Registry[type[Task]] = Registry(
    "weft.tasks",
    "task",
    {
        "text": "weft.tasks.text:TextTask",
        "translation": "weft.tasks.translation:TranslationTask",
        "classification": "weft.tasks.classification:ClassificationTask",
        "tagging": "weft.tasks.tagging:TaggingTask",
        "images": "weft.tasks.images:ImagesTask",
        "captions": "weft.tasks.captions:CaptionsTask",
        "forecast": "weft.tasks.forecast:ForecastTask",
        "sequences": "weft.tasks.sequences:SequencesTask",
        "embedding": "weft.tasks.embedding:EmbeddingTask",
    },
)
NOT_TRAINED = ("embedding",)  # the built-in tasks whose class says `trainable = False`


def trainable_tasks() -> tuple[str, ...]:
    """The names that `weft train` takes."""
    return tuple(name for name in TASKS if name not in NOT_TRAINED)


def task_named(name: str) -> type[Task]:
    """The class of a task."""
    from weft.tasks.task import Task

    if name not in TASKS:
        raise WeftError(f"there is no task {name!r}: choose one of {', '.join(trainable_tasks())}")
    found = TASKS[name]
    if not (isinstance(found, type) and issubclass(found, Task) and found.name == name):
        raise WeftError(f"the package that adds task {name!r} gives no Task of that name: update or uninstall it")
    return found
