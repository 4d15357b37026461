"""Which bytes of valid files stand under a checksum or say how long something is: a flipped bit there is noticed."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch

PLACES = re.compile(rb'"(?:dtype|shape|data_offsets)":(?:"[^"]*"|\[[^]]*\])')


def _all(data: bytes) -> Iterable[int]:
    return range(len(data))


def _only(magic: bytes) -> Callable[[bytes], Iterable[int]]:
    return lambda data: range(len(data)) if data.startswith(magic) else ()


def _safetensors(data: bytes) -> Iterable[int]:
    """The header's length, and what it says of types, shapes and places."""
    size = int.from_bytes(data[:8], "little")
    spans = (range(found.start(), found.end()) for found in PLACES.finditer(data[: 8 + size]))
    return [*range(8), *(at for span in spans for at in span)]


def _wav(data: bytes) -> Iterable[int]:
    """RIFF, WAVE, the names of chunks and the length of the sound."""
    at = data.index(b"data")
    return [*range(4), *range(8, 16), *range(at, at + 8)]


def _idx(data: bytes) -> Iterable[int]:
    return range(4 + 4 * data[3])


def _gguf(data: bytes) -> Iterable[int]:
    """Magic, version, and how many tensors and settings there are."""
    return range(24)


def _pieces(data: bytes) -> Iterable[int]:
    """How long each piece of a SentencePiece model is."""
    found, at = [], 0
    while at < len(data) and data[at] == 0x0A:
        found.append(at + 1)
        at += 2 + data[at + 1]
    return found


def _parquet(data: bytes) -> Iterable[int]:
    """The magic at both ends, the length of the footer, and pages, whose headers have their checksums."""
    size = int.from_bytes(data[-8:-4], "little")
    at = data.find(b"sea shells")
    return [*range(4), *range(len(data) - 8, len(data)), *(range(at, at + 10) if 0 < at < len(data) - size else ())]


REGIONS: dict[str, Callable[[bytes], Iterable[int]]] = {
    "packed text": _all,
    "image": _all,
    "image arrays": _all,
    "sequence arrays": _all,
    "idx": _idx,
    "tar": _all,
    "tgz": _all,
    "zip": _all,
    "wav": _wav,
    "parquet": _parquet,
    "foreign safetensors": _safetensors,
    "safetensors": _safetensors,
    "gguf": _gguf,
    "sentencepiece": _pieces,
    "deaf": _all,
}


def checked(name: str, data: bytes) -> list[int]:
    """The places of such bytes in a valid file for a reader; none where its format has none."""
    return list(REGIONS[name](data)) if name in REGIONS else []


def same(found: Any, sound: Any) -> bool:
    """Whether two results are equal in every bit."""
    return plain(found) == plain(sound)


def plain(value: Any) -> Any:
    """Arrays as bytes, objects as their fields."""
    if isinstance(value, torch.Tensor):
        return str(value.dtype), tuple(value.shape), value.contiguous().view(torch.uint8).numpy().tobytes()
    if isinstance(value, np.ndarray):
        return str(value.dtype), value.shape, value.tobytes()
    if isinstance(value, dict):
        return {key: plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [plain(getattr(value, field.name)) for field in dataclasses.fields(value)]
    return repr(value)
