"""How `decode.c` sees matrices, norms, layers and calls: the same structs, field by field."""

from __future__ import annotations

from ctypes import Structure, c_double, c_int64, c_void_p

from torch import Tensor

BLOCK_KINDS = ("Q8_0", "Q4_0", "Q4_1", "Q4_K", "Q6_K")  # in the order of blocks.h
NO_NORM, RMS, LAYER = 0, 1, 2
ACTIVATIONS = {"relu": 0, "gelu": 1, "gelu-tanh": 2, "silu": 3, "squared-relu": 4}


class Segment(Structure):
    """Rows of a matrix that are in blocks of one kind, packed."""

    _fields_ = [("packed", c_void_p), ("kind", c_int64), ("rows", c_int64)]


class Matrix(Structure):
    """A weight [rows, cols] in float32, or in segments of blocks; and its bias."""

    _fields_ = [
        ("weight", c_void_p),
        ("segments", c_void_p),
        ("bias", c_void_p),
        ("rows", c_int64),
        ("cols", c_int64),
        ("segment_count", c_int64),
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
        ("source", c_int64),
        ("starts", c_void_p),
        ("orders", c_void_p),
        ("positions", c_void_p),
        ("source_real", c_void_p),
        ("scratch", c_void_p),
        ("rounded", c_void_p),
        ("scratch_row", c_int64),
        ("longest", c_int64),
        ("rounded_row", c_int64),
    ]


def matrix_of(weight: Tensor, bias: Tensor | None) -> Matrix:
    """A weight of float32; both contiguous."""
    bias_at = None if bias is None else bias.data_ptr()
    return Matrix(weight.data_ptr(), None, bias_at, weight.shape[0], weight.shape[1], 0)


def store_of(x: Tensor) -> CacheStore:
    """[B, G, S, width], the width contiguous."""
    return CacheStore(x.data_ptr(), x.stride(0), x.stride(1), x.stride(2))


__all__ = [
    "ACTIVATIONS",
    "BLOCK_KINDS",
    "BRANCH_NORMS",
    "OUTPUT_NORMS",
    "CacheStore",
    "Layer",
    "Matrix",
    "NormTerms",
    "Segment",
    "StackShape",
    "StepCall",
    "matrix_of",
    "store_of",
]
