"""Arrays as text inside a page: base64 of little-endian numbers, as exact as the room allows."""

from __future__ import annotations

import base64
import json
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

Exactness = Literal["f4", "f2", "u1", "u2"]
EXACT = 2_000_000  # numbers; more are written with half the precision (11 bits), an error below 1 in 2000
TYPES: dict[Exactness, str] = {"f4": "<f4", "f2": "<f2", "u1": "|u1", "u2": "<u2"}


def pack(values: ArrayLike, exactness: Exactness | None = None) -> dict[str, Any]:
    """{shape, type, data}; without `exactness` 32 bits a number, or 16 where there are very many."""
    array = np.asarray(values)
    kind: Exactness = exactness or ("f4" if array.size <= EXACT else "f2")
    with np.errstate(over="ignore"):
        raw = np.ascontiguousarray(array, dtype=TYPES[kind])
    return {"shape": list(array.shape), "type": kind, "data": base64.b64encode(raw.tobytes()).decode("ascii")}


def unpack(tree: dict[str, Any]) -> NDArray[Any]:
    """The array that `pack` wrote, as the page reads it."""
    raw = np.frombuffer(base64.b64decode(tree["data"]), dtype=TYPES[tree["type"]])
    return raw.reshape(tree["shape"])


def script_text(value: Any) -> str:
    """JSON that may stand inside a <script>: no sign that ends one, all letters beyond ASCII escaped."""
    text = json.dumps(value, ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")
