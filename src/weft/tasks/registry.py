"""All tasks by name: Weft's own, and those that installed packages add by the entry-point group `weft.tasks`.

Names are known without loading any task. Adding a task to Weft is one file in this folder; a package of its own adds a
line to its pyproject.toml:

    [project.entry-points."weft.tasks"]
    parity = "my_package.parity:ParityTask"
"""

from __future__ import annotations

import pkgutil
from pathlib import Path
from typing import TYPE_CHECKING

from weft.foundation.errors import WeftError
from weft.foundation.plugins import Registry

if TYPE_CHECKING:
    from weft.tasks.task import Task

_NOT_TASKS = ("registry", "task")


def _files(folder: str = "") -> dict[str, str]:
    """Built-in tasks, one per file of this package: task `fill-mask` is the class `FillMaskTask` of fill_mask.py."""
    package = "weft.tasks" + (f".{folder}" if folder else "")
    found = pkgutil.iter_modules([str(Path(__file__).parent / folder)])
    names = [info.name for info in found if not info.ispkg and info.name not in _NOT_TASKS]
    return {name.replace("_", "-"): f"{package}.{name}:{name.title().replace('_', '')}Task" for name in names}


_TRAINED, _IMPORTED = _files(), _files("imported")
TASKS: Registry[type[Task]] = Registry("weft.tasks", "task", {**_TRAINED, **_IMPORTED})


def trainable_tasks() -> tuple[str, ...]:
    """The names that `weft train` takes; whether a plugin's task is trained here is known once it is loaded."""
    return tuple(name for name in TASKS if name not in _IMPORTED)


def task_named(name: str) -> type[Task]:
    """The class of a task."""
    from weft.tasks.task import Task

    if name not in TASKS:
        raise WeftError(f"there is no task {name!r}: choose one of {', '.join(trainable_tasks())}")
    found = TASKS[name]
    if not (isinstance(found, type) and issubclass(found, Task) and found.name == name):
        raise WeftError(f"the package that adds task {name!r} gives no Task of that name: update or uninstall it")
    return found
