"""Tensors of foreign checkpoints, read one by one: names and shapes are checked before any is read."""

from __future__ import annotations

import json
import math
import os
import struct
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from weft.checkpoints.formats.untrusted_files import file_inside, has_file, read_json
from weft.data.readers.files import DataError
from weft.foundation.files.regular_files import expect_regular

LARGEST_HEADER = 100_000_000  # bytes, the limit of the safetensors package
Shape = tuple[int, ...]
SAFETENSORS_TYPES: dict[str, torch.dtype] = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}


class ForeignTensors(ABC):
    """A checkpoint's tensors by name. `files` names their files, for errors."""

    files: str

    @property
    @abstractmethod
    def shapes(self) -> Mapping[str, Shape]:
        """Shapes by name."""

    @abstractmethod
    def dtype_of(self, name: str) -> torch.dtype:
        """The type that a tensor is read in."""

    @abstractmethod
    def read(self, name: str) -> Tensor:
        """Read one tensor from its file."""

    def block_kind(self, name: str) -> str | None:
        """The kind of the blocks that a matrix is stored in, if they can be kept (`parts.block_formats`)."""
        return None

    def read_blocks(self, name: str) -> Tensor:
        """The blocks of such a matrix, uint8 [out, row bytes], whichever way round its shape is."""
        raise NotImplementedError

    def same(self, name: str, other: str) -> bool:
        """Whether two tensors are equal."""
        return self.shapes[name] == self.shapes[other] and bool(torch.equal(self.read(name), self.read(other)))


@dataclass(frozen=True)
class SafetensorsEntry:
    """Where a tensor lies in a safetensors file."""

    path: Path
    dtype: torch.dtype
    shape: Shape
    first: int
    size: int


class SafeTensors(ForeignTensors):
    """One safetensors file or several."""

    def __init__(self, entries: dict[str, SafetensorsEntry]) -> None:
        self.entries = entries
        self.files = ", ".join(sorted({entry.path.name for entry in entries.values()})[:3])

    @property
    def shapes(self) -> Mapping[str, Shape]:
        return {name: entry.shape for name, entry in self.entries.items()}

    def dtype_of(self, name: str) -> torch.dtype:
        return self.entries[name].dtype

    def read(self, name: str) -> Tensor:
        """Only this tensor is in memory."""
        entry = self.entries[name]
        buffer = torch.empty(entry.size, dtype=torch.uint8)
        with entry.path.open("rb") as file:
            file.seek(entry.first)
            if entry.size and file.readinto(buffer.numpy().data) != entry.size:
                raise DataError(f"{entry.path.name} ends within {name}: it was cut off; fetch it again")
        return buffer.view(entry.dtype).reshape(entry.shape)


def read_safetensors_header(path: Path) -> dict[str, SafetensorsEntry]:
    """The tensors of a safetensors file: a length, a JSON table, then the numbers without gaps or overlaps."""
    size = expect_regular(path, DataError).stat().st_size
    with path.open("rb") as file:
        head = file.read(8)
        length = struct.unpack("<Q", head)[0] if len(head) == 8 else -1
        if not 2 <= length <= min(LARGEST_HEADER, size - 8):
            raise DataError(
                f"{path.name} is not a safetensors file: its header of {length:,} bytes does not fit its {size:,}: "
                "fetch it again"
            )
        text = file.read(length)
    try:
        table = json.loads(text, object_pairs_hook=_once)
        found = {name: _entry(path, name, fields, 8 + length) for name, fields in table.items()}
    except (ValueError, TypeError, KeyError, RecursionError, AttributeError) as error:
        raise DataError(f"the header of {path.name} is broken ({str(error)[:100]}): fetch it again") from None
    end = 8 + length
    for name, entry in sorted(found.items(), key=lambda item: (item[1].first, item[1].size)):
        if entry.first != end:
            raise DataError(
                f"{path.name}: {name} begins at byte {entry.first:,}, not at {end:,}: do not trust this file"
            )
        end += entry.size
    if end != size:
        state = "was cut off" if end > size else "has something after its tensors"
        raise DataError(f"{path.name} {state}: its header promises {end:,} bytes, {size:,} are there; fetch it again")
    return found


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) != len(pairs):
        raise ValueError("a name stands there twice")
    table.pop("__metadata__", None)
    return table


def _entry(path: Path, name: str, fields: Any, start: int) -> SafetensorsEntry:
    kind, shape, (first, last) = fields["dtype"], fields["shape"], fields["data_offsets"]
    if kind not in SAFETENSORS_TYPES:
        raise DataError(
            f"{path.name}: {name} is stored as {kind!r:.20}: convert the weights to bfloat16 or float32 first"
        )
    numbers = [*shape, first, last]
    if not all(isinstance(n, int) and not isinstance(n, bool) and 0 <= n < 1 << 62 for n in numbers):
        raise ValueError(f"{name}: sizes and offsets must be whole numbers from 0")
    if last - first != math.prod(shape) * SAFETENSORS_TYPES[kind].itemsize:
        raise ValueError(f"{name}: {last - first} bytes for the shape {shape} of {kind}")
    return SafetensorsEntry(path, SAFETENSORS_TYPES[kind], tuple(shape), start + first, last - first)


class TorchTensors(ForeignTensors):
    """Tensors of PyTorch files, loaded with weights_only=True: no code in them is run."""

    def __init__(self, tensors: dict[str, Tensor], files: str) -> None:
        self.tensors, self.files = tensors, files

    @property
    def shapes(self) -> Mapping[str, Shape]:
        return {name: tuple(tensor.shape) for name, tensor in self.tensors.items()}

    def dtype_of(self, name: str) -> torch.dtype:
        return self.tensors[name].dtype

    def read(self, name: str) -> Tensor:
        """Memory-mapped where the file allows it."""
        return self.tensors[name].detach()


def open_tensors(folder: Path) -> ForeignTensors:
    """The weights of a folder: model.safetensors, its shards, or PyTorch files if there is nothing better."""
    if has_file(folder, "model.safetensors"):
        return SafeTensors(read_safetensors_header(file_inside(folder, "model.safetensors")))
    if has_file(folder, "model.safetensors.index.json"):
        return SafeTensors(dict(_sharded(folder, "model.safetensors.index.json")))
    for name in ("pytorch_model.bin", "pytorch_model.bin.index.json", "pytorch_model.pt", "model.pt"):
        if has_file(folder, name):
            return _open_torch(folder, name)
    raise DataError(
        f"{folder} holds no weights: model.safetensors, its shards with model.safetensors.index.json, or "
        "pytorch_model.bin is needed"
    )


def _shards(folder: Path, index: str) -> dict[str, list[str]]:
    """The files that an index names, with the tensors of each."""
    table = read_json(file_inside(folder, index)).get("weight_map")
    if not isinstance(table, dict) or not table:
        raise DataError(f"{index} has no weight_map: fetch it again")
    files: dict[str, list[str]] = {}
    for name, file in table.items():
        files.setdefault(str(file_inside(folder, file).name), []).append(name)
    for file in files:
        if not has_file(folder, file):
            raise DataError(f"{index} names {file}, which is not there: fetch the folder again")
    return files


def _sharded(folder: Path, index: str) -> Iterator[tuple[str, SafetensorsEntry]]:
    for file, names in _shards(folder, index).items():
        found = read_safetensors_header(file_inside(folder, file))
        _expect_names(index, file, names, found)
        yield from found.items()


def _expect_names(index: str, file: str, names: list[str], found: Mapping[str, object]) -> None:
    other = sorted(set(names) ^ set(found))
    if other:
        where = "is not there" if other[0] in names else f"is not in {index}"
        raise DataError(f"{file} and {index} do not fit together: {other[0]} {where}; fetch the folder again")


def _open_torch(folder: Path, name: str) -> TorchTensors:
    warnings.warn(
        f"{name} is a pickle: it is read with weights_only=True, which runs nothing in it; prefer safetensors",
        UserWarning,
        stacklevel=2,
    )
    if not name.endswith(".json"):
        return TorchTensors(_load_torch(file_inside(folder, name)), name)
    tensors: dict[str, Tensor] = {}
    files = _shards(folder, name)
    for file, names in files.items():
        found = _load_torch(file_inside(folder, file))
        _expect_names(name, file, names, found)
        tensors |= found
    return TorchTensors(tensors, ", ".join(sorted(files)[:3]))


def _load_torch(path: Path) -> dict[str, Tensor]:
    try:
        mapped = _is_zip(path)
        tree = torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
    except Exception as error:  # a hostile or broken pickle can raise anything
        reason = str(error).strip().splitlines()[0][:120] if str(error).strip() else type(error).__name__
        raise DataError(f"{path.name} cannot be read safely as a file of tensors ({reason}): use safetensors") from None
    if not isinstance(tree, dict) or not all(isinstance(n, str) and isinstance(t, Tensor) for n, t in tree.items()):
        raise DataError(f"{path.name} holds something else than named tensors: save a state dict, or use safetensors")
    return dict(tree)


def _is_zip(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(4) == b"PK\x03\x04" and os.path.getsize(path) > 4
