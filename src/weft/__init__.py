"""Weft: transformers, all of the textbook from one set of parts; lawful, visible, complete, fast.

Rooms load when first used, so `import weft` costs next to nothing.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
from functools import partial
from typing import TYPE_CHECKING, Any

# On a busy machine threads that wait for each other shall sleep: spinning makes steps several times slower there. On a
# quiet one spinning is a quarter faster, and stays. It counts only before torch is loaded; the user's own value wins.
if hasattr(os, "getloadavg") and os.getloadavg()[0] > (os.cpu_count() or 1) / 2:
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

__version__ = "0.1.0"

if TYPE_CHECKING:
    from weft import figures, foreign, foundation, inspection, laws, models, parts
    from weft.foundation.errors import WeftError
    from weft.inspection.compare import compare
    from weft.inspection.watch import watch
    from weft.models.build import build, read_spec
    from weft.models.presets import preset, presets
    from weft.tasks.exporting import export
    from weft.tasks.importing import import_checkpoint
    from weft.tasks.run import Run, load
    from weft.training.train import train

_HOMES = {
    "Run": "weft.tasks.run",
    "WeftError": "weft.foundation.errors",
    "build": "weft.models.build",
    "compare": "weft.inspection.compare",
    "export": "weft.tasks.exporting",
    "import_checkpoint": "weft.tasks.importing",
    "load": "weft.tasks.run",
    "preset": "weft.models.presets",
    "presets": "weft.models.presets",
    "read_spec": "weft.models.build",
    "train": "weft.training.train",
    "watch": "weft.inspection.watch",
}
_ROOMS = ("figures", "foreign", "foundation", "inspection", "laws", "models", "parts")

__all__ = [
    "Run",
    "WeftError",
    "__version__",
    "build",
    "compare",
    "export",
    "figures",
    "foreign",
    "foundation",
    "import_checkpoint",
    "inspection",
    "laws",
    "load",
    "models",
    "parts",
    "preset",
    "presets",
    "read_spec",
    "train",
    "watch",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    if name in _ROOMS:
        room = importlib.import_module(f"weft.{name}")
        room.__dict__.setdefault("__getattr__", partial(_open, room.__name__))
        return room
    raise AttributeError(f"module 'weft' has no attribute {name!r}")


def _open(room: str, name: str) -> Any:
    """A file of a room, loaded when it is first asked for: `weft.parts.masks`."""
    if not name.startswith("_") and importlib.util.find_spec(f"{room}.{name}") is not None:
        return importlib.import_module(f"{room}.{name}")
    raise AttributeError(f"module {room!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
