"""Weft: transformers, all of the textbook from one set of parts; lawful, visible, complete, fast.

Rooms load when first used, so `import weft` costs next to nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from weft import (
        bench,
        checkpoints,
        data,
        figures,
        foreign,
        foundation,
        inference,
        inspection,
        laws,
        models,
        parts,
        reports,
        runs,
        tasks,
        training,
    )
    from weft.foundation.errors import WeftError
    from weft.inspection.comparison.locate_divergence import locate_divergence
    from weft.inspection.recording.watch import watch
    from weft.models.build import build, read_spec
    from weft.models.presets import preset, presets
    from weft.reports.train import train
    from weft.runs.compare import compare
    from weft.runs.export_run import export
    from weft.runs.import_run import import_checkpoint
    from weft.runs.run import Run, load

_HOMES = {
    "Run": "weft.runs.run",
    "WeftError": "weft.foundation.errors",
    "build": "weft.models.build",
    "compare": "weft.runs.compare",
    "export": "weft.runs.export_run",
    "import_checkpoint": "weft.runs.import_run",
    "load": "weft.runs.run",
    "locate_divergence": "weft.inspection.comparison.locate_divergence",
    "preset": "weft.models.presets",
    "presets": "weft.models.presets",
    "read_spec": "weft.models.build",
    "train": "weft.reports.train",
    "watch": "weft.inspection.recording.watch",
}
_ROOMS = (
    *("foundation", "figures", "parts", "models", "foreign", "data", "checkpoints", "laws"),
    *("inference", "tasks", "runs", "training", "inspection", "reports", "bench", "lessons"),
)

__all__ = [
    "Run",
    "WeftError",
    "__version__",
    "bench",
    "build",
    "checkpoints",
    "compare",
    "data",
    "export",
    "figures",
    "foreign",
    "foundation",
    "import_checkpoint",
    "inference",
    "inspection",
    "laws",
    "load",
    "locate_divergence",
    "models",
    "parts",
    "preset",
    "presets",
    "read_spec",
    "reports",
    "runs",
    "tasks",
    "train",
    "training",
    "watch",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    if name in _ROOMS:
        return importlib.import_module(f"weft.{name}")
    raise AttributeError(f"module 'weft' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
