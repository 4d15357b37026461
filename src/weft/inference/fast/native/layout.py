"""How `decode.c` sees matrices, norms, layers and calls: the same structs, field by field."""

from __future__ import annotations

from ctypes import Structure, c_double, c_int64, c_void_p

from torch import Tensor

F32, INT8 = 0, 1
NO_NORM, RMS, LAYER = 0, 1, 2
ACTIVATIONS = {"relu": 0, "gelu": 1, "gelu-tanh": 2, "silu": 3, "squared-relu": 4}


class Matrix(Structure):
    """A weight [rows, cols], its scales if it is int8, its bias."""

    _fields_ = [
        ("weight", c_void_p),
        ("scale", c_void_p),
        ("bias", c_void_p),
        ("rows", c_int64),
        ("cols", c_int64),
        ("type", c_int64),
    ]


class NormTerms(Structure):
    """gamma, beta, epsilon and the kind of a norm."""

    _fields_ = [("gamma", c_void_p), ("beta", c_void_p), ("epsilon", c_double), ("kind", c_int64)]


class CacheStore(Structure):
    """Keys or values [row, head, slot, width] with their strides, in numbers."""

    _fields_ = [("data", c_void_p), ("row", c_int64), ("head", c_int64), ("slot", c_int64)]


BRANCH_NORMS = ("mixer_norm", "cross_norm", "feedforward_norm")
OUTPUT_NORMS = ("mixer_output_norm", "cross_output_norm", "feedforward_output_norm")
_NORMS = (*BRANCH_NORMS, "query_norm", "key_norm", "cross_query_norm", *OUTPUT_NORMS)
_MATRICES = ("qkv", "output", "cross_query", "cross_output", "up", "down")
_STORES = ("keys", "values", "memory_keys", "memory_values")


class Layer(Structure):
    """One block: its norms, matrices, and caches of keys and values."""

    _fields_ = [
        *((name, NormTerms) for name in _NORMS),
        *((name, Matrix) for name in _MATRICES),
        *((name, CacheStore) for name in _STORES),
        ("cosines", c_void_p),
        ("sines", c_void_p),
        ("window", c_int64),
        ("capacity", c_int64),
        ("slot_group", c_int64),
    ]


_SIZES = ("layers", "width", "heads", "key_heads", "head_width", "value_width", "hidden")
_CROSS = ("cross_heads", "cross_key_heads", "cross_width", "cross_value_width")
_WAYS = ("activation", "gated", "arrangement", "rotary")


class StackShape(Structure):
    """What all layers share."""

    _fields_ = [
        *((name, c_int64) for name in (*_SIZES, *_CROSS, *_WAYS)),
        ("scale", c_double),
        ("cross_scale", c_double),
        ("cap", c_double),
        ("cross_cap", c_double),
        ("last", NormTerms),
    ]


class StepCall(Structure):
    """What changes from step to step."""

    _fields_ = [
        ("batch", c_int64),
        ("tokens", c_int64),
        ("source", c_int64),
        ("orders", c_void_p),
        ("positions", c_void_p),
        ("source_real", c_void_p),
        ("scratch", c_void_p),
        ("scratch_row", c_int64),
        ("longest", c_int64),
    ]


def matrix_of(weight: Tensor, bias: Tensor | None, scale: Tensor | None = None) -> Matrix:
    """A weight of float32, or of int8 with its scales; all contiguous."""
    return Matrix(
        weight.data_ptr(),
        None if scale is None else scale.data_ptr(),
        None if bias is None else bias.data_ptr(),
        weight.shape[0],
        weight.shape[1],
        F32 if scale is None else INT8,
    )


def store_of(x: Tensor) -> CacheStore:
    """[B, G, S, width], the width contiguous."""
    return CacheStore(x.data_ptr(), x.stride(0), x.stride(1), x.stride(2))


__all__ = [
    "ACTIVATIONS",
    "BRANCH_NORMS",
    "OUTPUT_NORMS",
    "CacheStore",
    "Layer",
    "Matrix",
    "NormTerms",
    "StackShape",
    "StepCall",
    "matrix_of",
    "store_of",
]
