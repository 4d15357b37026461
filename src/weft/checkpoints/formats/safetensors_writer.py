"""Safetensors files written tensor by tensor: no more than one is in memory at a time."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from math import prod
from pathlib import Path
from typing import BinaryIO, NamedTuple

import torch
from torch import Tensor

from weft.checkpoints.atomic import write_atomic
from weft.checkpoints.formats.foreign_tensors import SAFETENSORS_TYPES, Shape

TYPE_NAMES = {kind: name for name, kind in SAFETENSORS_TYPES.items()}
HEADER_ALIGNMENT = 8


class TensorInfo(NamedTuple):
    """What a tensor will be: its type and shape."""

    type: torch.dtype
    shape: Shape

    @property
    def bytes(self) -> int:
        """What it takes in the file."""
        return prod(self.shape) * self.type.itemsize


def stream_safetensors(
    path: Path, slots: Mapping[str, TensorInfo], make: Callable[[str], Tensor], notes: Mapping[str, str] | None = None
) -> None:
    """A safetensors file, atomically; `make` gives each tensor when its turn comes."""
    # Wide types first, so that every tensor begins at a multiple of its own size.
    order = sorted(slots, key=lambda name: (-slots[name].type.itemsize, name))
    write_atomic(path, lambda fresh: _write(fresh, order, slots, make, notes))


def _write(
    path: Path,
    order: list[str],
    slots: Mapping[str, TensorInfo],
    make: Callable[[str], Tensor],
    notes: Mapping[str, str] | None,
) -> None:
    header: dict[str, object] = {"__metadata__": dict(notes)} if notes else {}
    end = 0
    for name in order:
        slot = slots[name]
        header[name] = {
            "dtype": TYPE_NAMES[slot.type],
            "shape": list(slot.shape),
            "data_offsets": [end, end + slot.bytes],
        }
        end += slot.bytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % HEADER_ALIGNMENT)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name in order:
            _append(file, name, slots[name], make(name))


def _append(file: BinaryIO, name: str, slot: TensorInfo, tensor: Tensor) -> None:
    if tuple(tensor.shape) != slot.shape or tensor.dtype != slot.type:
        raise AssertionError(f"{name} is {tuple(tensor.shape)} {tensor.dtype}, not {slot}")
    if slot.bytes:
        file.write(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().data)
