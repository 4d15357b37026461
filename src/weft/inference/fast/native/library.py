"""The compiled library: built once per machine from `decode.c` and its headers by the compiler at hand, and kept in the
cache folder.

Without a compiler, or with WEFT_NATIVE=0, there is none, and decoding uses torch's own operations.
"""

from __future__ import annotations

import ctypes
import functools

import torch

from weft.foundation import native_code
from weft.inference.fast.native.layout import Matrix, NormTerms, matrix_of

PACKAGE = "weft.inference.fast.native"
SOURCES = (
    "decode.c",
    "products.h",
    "blocks.h",
    "blocks_avx512.h",
    "blocks_avx2.h",
    "blocks_portable.h",
    "summaries.h",
    "vectors.h",
)


@functools.cache
def library() -> ctypes.CDLL | None:
    """The library, or None where it cannot be built or does not compute what torch computes."""
    return native_code.load_library(PACKAGE, SOURCES, _checked)


def compiled(compiler: str, *defines: str) -> ctypes.CDLL | None:
    """The library by this compiler, kept for the next time; `defines` (-DWEFT_PORTABLE) choose other code."""
    return _checked(native_code.compiled(compiler, PACKAGE, SOURCES, *defines))


def _checked(found: ctypes.CDLL) -> ctypes.CDLL | None:
    """The library with its calls declared, if a product of it is right."""
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    found.weft_step.argtypes = [pointer] * 5 + [number]
    found.weft_product.argtypes = [ctypes.POINTER(Matrix), pointer, pointer, number, pointer, number]
    found.weft_pack.argtypes = [number, pointer, number, number, pointer]
    found.weft_normalize.argtypes = [ctypes.POINTER(NormTerms), pointer, pointer, number, number, number]
    found.weft_activate.argtypes = [pointer, pointer] + [number] * 5
    found.weft_normalize.restype = found.weft_activate.restype = None
    found.weft_summaries.argtypes = [pointer, number, number, pointer, pointer, pointer, number]
    found.weft_pieces.argtypes, found.weft_pieces.restype = [number], number
    found.weft_packed_size.argtypes, found.weft_rounded_size.argtypes = [number] * 3, [number]
    found.weft_packed_size.restype = found.weft_rounded_size.restype = number
    found.weft_step.restype = found.weft_product.restype = found.weft_pack.restype = None
    found.weft_summaries.restype = None
    made = torch.Generator().manual_seed(0)
    weight, x = torch.randn(7, 19, generator=made), torch.randn(2, 19, generator=made)
    y = torch.zeros(2, 7)
    found.weft_product(ctypes.byref(matrix_of(weight, None)), x.data_ptr(), y.data_ptr(), 2, None, 1)
    return found if torch.allclose(y, x @ weight.T, atol=1e-5) else None
