"""Safetensors files written tensor by tensor, with only one in memory at a time."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from math import prod
from pathlib import Path
from typing import BinaryIO, NamedTuple

import torch
from torch import Tensor

from weft.checkpoints.formats.foreign_tensors import SAFETENSORS_TYPES, Shape
from weft.foundation.files.atomic_files import write_atomic

TYPE_NAMES = {kind: name for name, kind in SAFETENSORS_TYPES.items()}
HEADER_ALIGNMENT = 8


class TensorInfo(NamedTuple):
    """Type and shape of a tensor."""

    dtype: torch.dtype
    shape: Shape

    @property
    def bytes(self) -> int:
        return prod(self.shape) * self.dtype.itemsize


def stream_safetensors(
    path: Path,
    infos: Mapping[str, TensorInfo],
    make: Callable[[str], Tensor],
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Write a safetensors file atomically; `make` is called for each tensor when it is written."""
    # Wide types first, so that every tensor is aligned to its own item size.
    order = sorted(infos, key=lambda name: (-infos[name].dtype.itemsize, name))
    write_atomic(path, lambda fresh: _write(fresh, order, infos, make, metadata))


def _write(
    path: Path,
    order: list[str],
    infos: Mapping[str, TensorInfo],
    make: Callable[[str], Tensor],
    metadata: Mapping[str, str] | None,
) -> None:
    header: dict[str, object] = {"__metadata__": dict(metadata)} if metadata else {}
    end = 0
    for name in order:
        info = infos[name]
        header[name] = {
            "dtype": TYPE_NAMES[info.dtype],
            "shape": list(info.shape),
            "data_offsets": [end, end + info.bytes],
        }
        end += info.bytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % HEADER_ALIGNMENT)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name in order:
            _append(file, name, infos[name], make(name))


def _append(file: BinaryIO, name: str, info: TensorInfo, tensor: Tensor) -> None:
    if tuple(tensor.shape) != info.shape or tensor.dtype != info.dtype:
        raise AssertionError(f"{name} is {tuple(tensor.shape)} {tensor.dtype}, not {info}")
    if info.bytes:
        file.write(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().data)
