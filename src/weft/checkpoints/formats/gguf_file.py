"""GGUF files of llama.cpp: settings, then tensors, full or quantized. Every number is checked before use.

The package gguf dequantizes; its own reader is not used, because it trusts the lengths that a file states.
"""

from __future__ import annotations

import math
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from weft.checkpoints.formats.foreign_tensors import Shape
from weft.data.readers.files import DataError
from weft.foundation.files.regular_files import expect_regular

MAGIC, VERSIONS = b"GGUF", (2, 3)
ALIGNMENT, LARGEST_ALIGNMENT, MOST_AXES = 32, 1 << 20, 4
STRING, ARRAY = 8, 9
INTEGER_TYPES = ("I8", "I16", "I32", "I64")
NUMBER_CODES = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}


class GGUFEntry(NamedTuple):
    """Where a tensor is in the file, and the type of its numbers."""

    kind: str
    shape: Shape
    first: int
    size: int


@dataclass(frozen=True)
class GGUFFile:
    """The settings of a file and the entries of its tensors."""

    path: Path
    settings: dict[str, Any]
    tensors: dict[str, GGUFEntry]

    def read(self, name: str, place: int | None = None) -> Tensor:
        """One tensor, or one entry of its first axis; quantized ones become float32."""
        from gguf import GGMLQuantizationType
        from gguf.quants import dequantize

        stored = self.tensors[name]
        shape = stored.shape if place is None else stored.shape[1:]
        data = self.read_bytes(name, place).numpy()
        plain = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "F64": torch.float64}.get(
            stored.kind
        )
        if plain is not None:
            return torch.from_numpy(data).view(plain).reshape(shape)
        try:
            rows = data.reshape(math.prod(shape[:-1]), -1)
            numbers = dequantize(rows, GGMLQuantizationType[stored.kind]).astype(np.float32)
        except NotImplementedError:
            raise DataError(
                f"{self.path.name}: {name} is of type {stored.kind}, which the package gguf cannot read: "
                "fetch it as F16, Q8_0, Q6_K, Q4_K or Q4_0"
            ) from None
        return torch.from_numpy(numbers).reshape(shape)

    def read_bytes(self, name: str, place: int | None = None) -> Tensor:
        """The bytes of one tensor, or of one entry of its first axis."""
        stored = self.tensors[name]
        size = stored.size if place is None else stored.size // stored.shape[0]
        with self.path.open("rb") as file:
            file.seek(stored.first + (place or 0) * size)
            data = np.fromfile(file, dtype=np.uint8, count=size)
        if len(data) != size:
            raise DataError(f"{self.path.name} ends within {name}: it was cut off; fetch it again")
        return torch.from_numpy(data)

    def dtype_of(self, name: str) -> torch.dtype:
        """The type that a tensor is read in; integers are refused by code that expects weights."""
        if self.tensors[name].kind in INTEGER_TYPES:
            return torch.int64
        kinds = {"F16": torch.float16, "BF16": torch.bfloat16, "F64": torch.float64}
        return kinds.get(self.tensors[name].kind, torch.float32)


class _Bytes:
    """A position in the file; reading past the end is a `DataError`."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self.path, self.data, self.at = path, data, 0

    def take(self, size: int) -> bytes:
        if size < 0 or size > len(self.data) - self.at:
            raise DataError(
                f"{self.path.name} is broken at byte {self.at:,}: something is longer than the file; fetch it again"
            )
        found = self.data[self.at : self.at + size]
        self.at += size
        return found

    def number(self, code: str) -> Any:
        return struct.unpack(f"<{code}", self.take(struct.calcsize(f"<{code}")))[0]

    def text(self) -> str:
        return self.take(self.number("Q")).decode("utf-8", errors="replace")

    def count(self, least: int) -> int:
        """The number of entries that follow, each of at least `least` bytes: never more than fit."""
        count = int(self.number("Q"))
        if count > (len(self.data) - self.at) // least:
            raise DataError(f"{self.path.name} promises {count:,} entries, which do not fit into it: do not trust it")
        return count

    def value(self, kind: int) -> Any:
        if kind in NUMBER_CODES:
            return self.number(NUMBER_CODES[kind])
        if kind == STRING:
            return self.text()
        if kind != ARRAY:
            raise DataError(
                f"{self.path.name} holds a setting of type {kind} at byte {self.at:,}, which GGUF does not have"
            )
        inner = int(self.number("I"))
        if inner == STRING:
            return [self.text() for _ in range(self.count(8))]
        if inner not in NUMBER_CODES:
            raise DataError(f"{self.path.name} holds lists of type {inner}, which are not read: fetch it again")
        code = NUMBER_CODES[inner]
        count = self.count(struct.calcsize(f"<{code}"))
        return list(struct.unpack(f"<{count}{code}", self.take(count * struct.calcsize(f"<{code}"))))


def open_gguf_file(path: Path) -> GGUFFile:
    """Read the header of a GGUF file; the tensors are not read."""
    if expect_regular(path, DataError).stat().st_size < 24:
        raise DataError(f"{path.name} is not a GGUF file: it has {path.stat().st_size} bytes; fetch it again")
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        source = _Bytes(path, data)
        if source.take(4) != MAGIC:
            raise DataError(f"{path.name} is not a GGUF file: it begins with something else; fetch it again")
        version = source.number("I")
        if version not in VERSIONS:
            raise DataError(
                f"{path.name} is of GGUF version {version:,}, but {' and '.join(map(str, VERSIONS))} are read"
            )
        entries, count = source.count(24), source.count(13)
        settings: dict[str, Any] = {}
        for _ in range(count):
            key = source.text()
            if key in settings:
                raise DataError(f"{path.name} sets {key!r:.60} twice: do not trust it")
            settings[key] = source.value(int(source.number("I")))
        infos = [_info(source) for _ in range(entries)]
        return GGUFFile(path, settings, _placed(path, settings, infos, source.at, len(data)))


def _info(source: _Bytes) -> tuple[str, Shape, int, int]:
    """(name, shape, type, offset) of a tensor; the file lists axes from the last."""
    name, axes = source.text(), int(source.number("I"))
    if not 1 <= axes <= MOST_AXES:
        raise DataError(f"{source.path.name}: {name!r:.60} has {axes} axes, but 1 to {MOST_AXES} are possible")
    shape = tuple(int(source.number("Q")) for _ in range(axes))[::-1]
    return name, shape, int(source.number("I")), int(source.number("Q"))


def _placed(
    path: Path, settings: dict[str, Any], infos: list[tuple[str, Shape, int, int]], end: int, size: int
) -> dict[str, GGUFEntry]:
    """The entries of all tensors: inside the file, aligned, none overlapping."""
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

    alignment = settings.get("general.alignment", ALIGNMENT)
    if not isinstance(alignment, int) or not 0 < alignment <= LARGEST_ALIGNMENT or alignment & (alignment - 1):
        raise DataError(f"{path.name}: an alignment of {alignment!r:.40} is not a power of two: do not trust it")
    start = -(-end // alignment) * alignment
    found: dict[str, GGUFEntry] = {}
    for name, shape, number, offset in infos:
        if number not in list(GGMLQuantizationType):
            raise DataError(f"{path.name}: {name} is of type {number}, which is not known: fetch it in another one")
        kind = GGMLQuantizationType(number)
        block, bytes_each = GGML_QUANT_SIZES[kind]
        numbers = math.prod(shape)
        length = numbers // block * bytes_each
        if shape[-1] % block or offset % alignment or not 0 < numbers < 1 << 48 or start + offset + length > size:
            raise DataError(
                f"{path.name}: {name} of shape {list(shape)} does not fit into the file: it was cut off or is broken"
            )
        if name in found:
            raise DataError(f"{path.name} holds {name} twice: do not trust it")
        found[name] = GGUFEntry(kind.name, shape, start + offset, length)
    last, before = start, ""
    for name, stored in sorted(found.items(), key=lambda item: item[1].first):
        if stored.first < last:
            raise DataError(f"{path.name}: {name} overlaps {before}: do not trust this file")
        last, before = stored.first + stored.size, name
    if size - last >= 2 * alignment:
        raise DataError(f"{path.name} has {size - last:,} bytes after its tensors: fetch it again")
    return found
