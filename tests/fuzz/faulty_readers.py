"""Readers that fail, each in a way that the fuzzer has to notice."""

from __future__ import annotations

import json
from pathlib import Path

from file_readers import FileReader
from weft.foundation.errors import WeftError


def _careless(path: Path) -> object:
    try:
        return json.loads(path.read_bytes())["text"]
    except (ValueError, TypeError, RecursionError):
        raise WeftError("it is broken: repair it") from None


def _greedy(path: Path) -> object:
    return bytearray(4 << 30) if path.read_bytes()[:1] != b"x" else None


def _endless(path: Path) -> object:
    while path.read_bytes()[:1] != b"x":
        pass
    return None


FAULTY = [
    FileReader("careless", "a.json", lambda: [b'{"text": "a"}'], _careless),
    FileReader("greedy", "a.txt", lambda: [b"xy"], _greedy),
    FileReader("endless", "a.txt", lambda: [b"xy"], _endless),
    FileReader("deaf", "a.txt", lambda: [b"xy"], lambda path: path.read_bytes()),
]
