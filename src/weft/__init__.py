"""Weft: transformers, all of the textbook from one set of parts; lawful, visible, complete, fast.

Rooms load when first used, so `import weft` costs next to nothing.
"""

from __future__ import annotations

import importlib
import importlib.util
from functools import partial
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from weft import figures, foreign, foundation, inspection, laws, models, parts
    from weft.foundation.errors import WeftError
    from weft.inspection.comparison.compare import compare
    from weft.inspection.recording.watch import watch
    from weft.models.build import build, read_spec
    from weft.models.presets import preset, presets
    from weft.runs.export_run import export
    from weft.runs.import_run import import_checkpoint
    from weft.runs.run import Run, load
    from weft.training.train import train

_HOMES = {
    "Run": "weft.runs.run",
    "WeftError": "weft.foundation.errors",
    "build": "weft.models.build",
    "compare": "weft.inspection.comparison.compare",
    "export": "weft.runs.export_run",
    "import_checkpoint": "weft.runs.import_run",
    "load": "weft.runs.run",
    "preset": "weft.models.presets",
    "presets": "weft.models.presets",
    "read_spec": "weft.models.build",
    "train": "weft.training.train",
    "watch": "weft.inspection.recording.watch",
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
        return _open("weft", name)
    raise AttributeError(f"module 'weft' has no attribute {name!r}")


def _open(room: str, name: str) -> Any:
    """A folder or file of a room, loaded when it is first asked for: `weft.parts.masks`."""
    if not name.startswith("_") and importlib.util.find_spec(f"{room}.{name}") is not None:
        found = importlib.import_module(f"{room}.{name}")
        if hasattr(found, "__path__"):
            found.__dict__.setdefault("__getattr__", partial(_open, found.__name__))
        return found
    raise AttributeError(f"module {room!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
