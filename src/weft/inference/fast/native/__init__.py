"""The native step: one decoding step of a whole stack by one call of compiled C, where there is a compiler."""

from weft.inference.fast.native.library import library
from weft.inference.fast.native.matrices import NativeMatrix, native_head, rows_alike
from weft.inference.fast.native.packed import PackedReader, Piece, packed_reader
from weft.inference.fast.native.stack import NativeStack, native_stack

__all__ = [
    "NativeMatrix",
    "NativeStack",
    "PackedReader",
    "Piece",
    "library",
    "native_head",
    "native_stack",
    "packed_reader",
    "rows_alike",
]
