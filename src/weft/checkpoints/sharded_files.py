"""A training state that several processes wrote: a folder of safetensors files with a part of each tensor in them.

    state-00000400/shard-0000N-model-00001-of-00001.safetensors    written by torch.distributed.checkpoint
    state-00000400/state.json                                      written last, so a folder without it is not complete

Tensors have the names and layout that one process gives them, whatever the parallelism was. A weight that is several
products in one (queries, keys and values) is stored as its sections, NAME#0, NAME#1, ...
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft.foundation.files.atomic_files import DiskError, write_text
from weft.foundation.files.json_text import parse_json
from weft.foundation.files.regular_files import expect_regular
from weft.foundation.spec import Tree

if TYPE_CHECKING:
    from torch import Tensor

INDEX, SECTION = "state.json", "#"


def section_key(name: str, number: int) -> str:
    """Under which a section of a fused weight is stored."""
    return f"{name}{SECTION}{number}"


def write_index(folder: Path, step: int, facts: Tree, scalars: dict[str, float]) -> None:
    """Declare the folder complete; `scalars` are numbers that are no tensors in it, such as optimizers' steps."""
    files = {file.name: file.stat().st_size for file in sorted(folder.glob("*.safetensors"))}
    write_text(folder / INDEX, json.dumps({"step": step, "facts": facts, "scalars": scalars, "files": files}) + "\n")


def read_index(folder: Path) -> Tree:
    """What `write_index` wrote; refused where a file is missing or has another size."""
    try:
        index: Tree = parse_json(expect_regular(folder / INDEX, DiskError).read_bytes())
        sizes = {name: (folder / name).stat().st_size for name in index["files"]}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DiskError(f"{folder} is not a complete training state ({error}): an older one may be") from None
    wrong = next((name for name, size in index["files"].items() if sizes[name] != size), None)
    if wrong is not None:
        raise DiskError(f"{folder / wrong} has {sizes[wrong]:,} bytes in place of {index['files'][wrong]:,}")
    return index


def read_whole(folder: Path) -> tuple[int, dict[str, Tensor], Tree]:
    """(step, whole tensors by name, facts): the state as one process would have written it."""
    import torch
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader

    index = read_index(folder)
    stored: Any = HuggingFaceStorageReader(str(folder)).read_metadata().state_dict_metadata
    state = {key: torch.empty(found.size, dtype=found.properties.dtype) for key, found in stored.items()}
    load(state, folder, no_dist=True)
    return index["step"], _joined(state) | as_tensors(index["scalars"]), index["facts"]


def load(state: dict[str, Any], folder: Path, no_dist: bool = False, planner: Any = None) -> None:
    """Fill `state` from the folder, each process what it asks for."""
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
    from torch.distributed.checkpoint.state_dict_loader import load as load_parts

    try:
        load_parts(state, storage_reader=HuggingFaceStorageReader(str(folder)), planner=planner, no_dist=no_dist)
    except (CheckpointException, OSError, RuntimeError, ValueError) as error:  # the first is no Exception
        raise DiskError(
            f"{folder} cannot be read ({first_reason(error)}): remove it, so that an older one is used"
        ) from None


def as_tensors(scalars: dict[str, float]) -> dict[str, Tensor]:
    """Numbers as the tensors without axes that they were; optimizers count steps in float32."""
    import torch

    kinds = {name: torch.float32 if name.endswith(".step") else torch.float64 for name in scalars}
    return {name: torch.tensor(value, dtype=kinds[name]) for name, value in scalars.items()}


def _joined(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Sections put together again."""
    import torch

    found: dict[str, list[tuple[int, Tensor]]] = {}
    for key, tensor in state.items():
        name, _, number = key.partition(SECTION)
        found.setdefault(name, []).append((int(number or 0), tensor))
    return {name: torch.cat([part for _, part in sorted(parts, key=lambda part: part[0])]) if len(parts) > 1 else
            parts[0][1] for name, parts in found.items()}  # fmt: skip


def first_reason(error: BaseException) -> str:
    """The first line of what went wrong, on the first process where it did."""
    failures = getattr(error, "failures", None)
    first = next(iter(failures.values()))[0] if failures else error
    return (str(first).strip().splitlines() or [type(first).__name__])[0][:120]
