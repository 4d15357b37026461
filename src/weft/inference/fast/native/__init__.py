"""The native step: one decoding step of a whole stack by one call of compiled C, where there is a compiler."""

from weft.inference.fast.native.library import library
from weft.inference.fast.native.matrices import NativeMatrix, native_head
from weft.inference.fast.native.stack import NativeStack, native_stack

__all__ = ["NativeMatrix", "NativeStack", "library", "native_head", "native_stack"]
