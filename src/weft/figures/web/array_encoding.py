"""Arrays as text inside a page: base64 of little-endian numbers; large ones in half precision."""

from __future__ import annotations

import base64
import json
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

ArrayType = Literal["f4", "f2", "u1", "u2"]
FULL_PRECISION_LIMIT = 2_000_000  # numbers; larger arrays are written as float16, with a relative error below 1/2000
NUMPY_TYPES: dict[ArrayType, str] = {"f4": "<f4", "f2": "<f2", "u1": "|u1", "u2": "<u2"}


def encode_array(values: ArrayLike, exactness: ArrayType | None = None) -> dict[str, Any]:
    """{shape, type, data}; by default float32, or float16 for large arrays."""
    array = np.asarray(values)
    kind: ArrayType = exactness or ("f4" if array.size <= FULL_PRECISION_LIMIT else "f2")
    with np.errstate(over="ignore"):
        raw = np.ascontiguousarray(array, dtype=NUMPY_TYPES[kind])
    return {"shape": list(array.shape), "type": kind, "data": base64.b64encode(raw.tobytes()).decode("ascii")}


def decode_array(tree: dict[str, Any]) -> NDArray[Any]:
    """The inverse of `encode_array`, as the page does it."""
    raw = np.frombuffer(base64.b64decode(tree["data"]), dtype=NUMPY_TYPES[tree["type"]])
    return raw.reshape(tree["shape"])


def script_text(value: Any) -> str:
    """JSON that is safe inside a <script>: nothing ends the element, and all non-ASCII letters are escaped."""
    text = json.dumps(value, ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")
