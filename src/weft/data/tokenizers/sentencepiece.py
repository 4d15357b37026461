"""SentencePiece models (.model), read without the library: pieces, scores and types from the protobuf.

Only the fields needed: ModelProto.pieces (field 1: piece 1, score 2, type 3), trainer_spec.model_type (field 2, 3) and
normalizer_spec (field 3: precompiled_charsmap 2, add_dummy_prefix 3, remove_extra_whitespaces 4).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from weft.foundation.errors import WeftError

NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
UNIGRAM, BPE = 1, 2
FIRST_EXTENSION = 200  # numbers of fields that the format leaves to others
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5


@dataclass
class SentencePieceModel:
    """Pieces with their scores and types, in the order of their ids; `forms` is the map that normalizes characters."""

    pieces: list[tuple[str, float, int]] = field(default_factory=list)
    model_type: int = UNIGRAM
    dummy_prefix: bool = True
    squeeze_spaces: bool = True
    forms: bytes = b""


def read_sentencepiece(path: Path) -> SentencePieceModel:
    """Parse a .model file."""
    try:
        model = _parse(path.read_bytes())
    except (IndexError, ValueError, struct.error) as error:
        raise WeftError(f"{path.name} is not a SentencePiece model ({error}): choose a tokenizer.model file") from None
    if not model.pieces:
        raise WeftError(f"{path.name} is not a SentencePiece model (it has no pieces): choose a tokenizer.model file")
    return model


def _parse(data: bytes) -> SentencePieceModel:
    model = SentencePieceModel()
    for number, value in _fields(data):
        if number == 1:
            piece, score, kind = "", 0.0, NORMAL
            for inner, content in _fields(_as_bytes(value)):
                if inner == 1:
                    piece = _as_bytes(content).decode()
                elif inner == 2:
                    score = struct.unpack("<f", _as_bytes(content))[0]
                elif inner == 3:
                    kind = int(content)
                elif inner < FIRST_EXTENSION:
                    raise ValueError(f"a piece has a field {inner}")
            model.pieces.append((piece, score, kind))
        elif number == 2:
            model.model_type = next((int(v) for n, v in _fields(_as_bytes(value)) if n == 3), UNIGRAM)
        elif number == 3:
            spec = dict(_fields(_as_bytes(value)))
            model.forms = _as_bytes(spec.get(2, b""))
            model.dummy_prefix = bool(spec.get(3, 1))
            model.squeeze_spaces = bool(spec.get(4, 1))
    return model


def _as_bytes(value: Any) -> bytes:
    if not isinstance(value, bytes):
        raise ValueError("a field has the wrong type")
    return value


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """(field number, value) of a protobuf message."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        number, wire = key >> 3, key & 7
        if wire == VARINT:
            value: Any
            value, at = _varint(data, at)
        elif wire in (FIXED32, FIXED64):
            size = 4 if wire == FIXED32 else 8
            value, at = data[at : at + size], at + size
        elif wire == BYTES:
            size, at = _varint(data, at)
            if at + size > len(data):
                raise ValueError("a field is longer than the file")
            value, at = data[at : at + size], at + size
        else:
            raise ValueError(f"wire type {wire}")
        yield number, value


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if not byte & 0x80:
            return value, at
        if shift > 63:
            raise ValueError("a number is too long")
