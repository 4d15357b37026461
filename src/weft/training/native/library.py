"""The compiled library over lists of tensors; without a C compiler torch's own functions do the same."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from weft.foundation import native_code

SOURCES = ("update.c",)


@functools.cache
def updates() -> ctypes.CDLL | None:
    """The library, or None where it cannot be built."""
    return native_code.load_library("weft.training.native", SOURCES, _declared)


def _declared(found: ctypes.CDLL) -> ctypes.CDLL:
    """The library with the types of its calls."""
    pointer, number, real = ctypes.c_void_p, ctypes.c_int64, ctypes.c_double
    found.weft_norm.argtypes, found.weft_norm.restype = [pointer] * 2 + [number] * 2, real
    found.weft_scale.argtypes = [pointer] * 2 + [number, ctypes.c_float, number]
    found.weft_adamw.argtypes = [pointer] * 6 + [number] + [real] * 5 + [number]
    found.weft_scale.restype = found.weft_adamw.restype = None
    return found


def pointers(tensors: Sequence[Tensor]) -> Any:
    """Where the tensors are, as an array for C."""
    return (ctypes.c_void_p * len(tensors))(*[x.data_ptr() for x in tensors])


def sizes(tensors: Sequence[Tensor]) -> Any:
    """How many numbers each tensor has, as an array for C."""
    return (ctypes.c_int64 * len(tensors))(*[x.numel() for x in tensors])
