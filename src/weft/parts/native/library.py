"""The compiled kernels, and which tensors they take.

Each has a readable definition by torch's operations, which computes everything else: other types than float32, other
devices, compiled and exported models, and machines without a C compiler.
"""

from __future__ import annotations

import ctypes
import functools
import subprocess

import torch
from torch import Tensor, nn

from weft.foundation import native_code

SOURCES = ("kernels.c", "attention.h")


@functools.cache
def kernels() -> ctypes.CDLL | None:
    """The library, or None where it cannot be built."""
    compiler = native_code.find_compiler()
    if compiler is None:
        return None
    try:
        return _declared(native_code.compiled(compiler, "weft.parts.native", SOURCES))
    except (OSError, subprocess.SubprocessError):
        return None


def _declared(found: ctypes.CDLL) -> ctypes.CDLL:
    """The library with the types of its calls."""
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    found.weft_gelu.argtypes = [pointer] * 2 + [number] * 2
    found.weft_gelu_backward.argtypes = [pointer] * 3 + [number] * 2
    found.weft_layer_norm.argtypes = [pointer] * 3 + [ctypes.c_float] + [pointer] * 3 + [number] * 3
    found.weft_layer_norm_backward.argtypes = [pointer] * 7 + [number] * 4
    found.weft_attention.argtypes = [pointer] * 3 + [ctypes.c_float] + [pointer] * 3
    found.weft_attention_backward.argtypes = [pointer] * 5 + [ctypes.c_float] + [pointer] * 5
    found.weft_attention_is_fast.restype = number
    for name in ("gelu", "gelu_backward", "layer_norm", "layer_norm_backward", "attention", "attention_backward"):
        getattr(found, f"weft_{name}").restype = None
    return found


def suits(*tensors: Tensor) -> bool:
    """Whether kernels take these: plain float32 in one piece of a CPU's memory, computed now and not traced."""
    return suits_in_strides(*tensors) and all(x.is_contiguous() for x in tensors)


def suits_in_strides(*tensors: Tensor) -> bool:
    """As `suits`, for tensors of which the last axis alone is in one piece."""
    if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
        return False
    if torch._C._get_tracing_state() is not None:
        return False
    if torch._C._len_torch_dispatch_stack():  # somebody counts torch's operations
        return False
    for x in tensors:
        if type(x) not in (Tensor, nn.Parameter) or x.dtype != torch.float32 or x.device.type != "cpu":
            return False
        if x.dim() and x.stride(-1) != 1 and x.shape[-1] > 1:
            return False
    return kernels() is not None
