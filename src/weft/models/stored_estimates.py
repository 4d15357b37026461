"""The estimates of all presets at their own lengths, stored: `weft show gpt2` answers without loading torch.

`preset_estimates.json` has one line per preset. A test computes all of them again and compares; after a change,
`WEFT_FREEZE=1 pytest tests/test_start.py` writes the file anew.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from weft.foundation.matrix_products import MatrixProduct
from weft.models.estimate_types import Estimate, Group, KeptMemory, KernelUse, MemoryUse, PartNode

FILE = Path(__file__).with_name("preset_estimates.json")


@dataclass(frozen=True)
class StoredEstimate:
    """A preset's estimate, and what the model declares of itself as a tree.

    `everywhere`: the kernels are the same on every device; with dropout they are not, and the ones here are the CPU's.
    `plain`: a model as lectures draw it.
    """

    estimate: Estimate
    declares: dict[str, Any]
    everywhere: bool
    plain: bool


@functools.cache
def _trees() -> dict[str, dict[str, Any]]:
    return json.loads(FILE.read_text(encoding="utf-8"))


def stored_presets() -> list[str]:
    """The presets that have a stored estimate, in the order of `presets()`."""
    return list(_trees())


def stored_estimate(preset: str) -> StoredEstimate | None:
    """What is stored of this preset, if anything."""
    tree = _trees().get(preset)
    if tree is None:
        return None
    return StoredEstimate(**{**tree, "estimate": read_estimate(tree["estimate"])})


def read_estimate(tree: Mapping[str, Any]) -> Estimate:
    """The inverse of `dataclasses.asdict`, through JSON."""
    groups = (
        Group(**{**group, "products": tuple(MatrixProduct(**one) for one in group["products"])})
        for group in tree["groups"]
    )
    inner = {
        "parts": _read_part(tree["parts"]),
        "groups": tuple(groups),
        "state": tuple(KeptMemory(**kept) for kept in tree["state"]),
        "memory": MemoryUse(**tree["memory"]),
        "kernels": tuple(KernelUse(**use) for use in tree["kernels"]),
        "notes": tuple(tree["notes"]),
    }
    return Estimate(**{**tree, **inner})


def _read_part(tree: Mapping[str, Any]) -> PartNode:
    return PartNode(**{**tree, "children": tuple(_read_part(child) for child in tree["children"])})
