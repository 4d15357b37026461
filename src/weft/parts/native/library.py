"""The compiled kernels, and which tensors they take.

Each has a readable definition by torch's operations, which computes everything else: other types than float32, other
devices, compiled and exported models, and machines without a C compiler.
"""

from __future__ import annotations

import ctypes
import functools

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from weft.foundation import native_code

SOURCES = ("kernels.c", "attention.h", "linear.h")


@functools.cache
def kernels() -> ctypes.CDLL | None:
    """The library, or None where it cannot be built."""
    return native_code.load_library("weft.parts.native", SOURCES, _declared)


def _declared(found: ctypes.CDLL) -> ctypes.CDLL:
    """The library with the types of its calls."""
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    found.weft_gelu.argtypes = [pointer] * 2 + [number] * 2
    found.weft_gelu_backward.argtypes = [pointer] * 3 + [number] * 2
    found.weft_layer_norm.argtypes = [pointer] * 3 + [ctypes.c_float] + [pointer] * 3 + [number] * 3
    found.weft_layer_norm_backward.argtypes = [pointer] * 7 + [number] * 4
    found.weft_linear.argtypes = [pointer] * 5 + [number] * 5
    found.weft_linear_to_x.argtypes = [pointer] * 4 + [number] * 5
    found.weft_linear_to_weights.argtypes = [pointer] * 5 + [number] * 5
    found.weft_attention.argtypes = [pointer] * 3 + [ctypes.c_float] + [pointer] * 3
    found.weft_attention_backward.argtypes = [pointer] * 5 + [ctypes.c_float] + [pointer] * 5
    found.weft_attention_is_fast.restype = found.weft_linear_is_fast.restype = number
    backward = (f"{name}{end}" for name in ("gelu", "layer_norm", "attention") for end in ("", "_backward"))
    for name in ("linear", "linear_to_x", "linear_to_weights", *backward):
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
    if forward_ad._current_level >= 0:  # derivatives go forward with the numbers
        return False
    for x in tensors:
        if type(x) not in (Tensor, nn.Parameter) or x.dtype != torch.float32 or x.device.type != "cpu":
            return False
        if x.dim() and x.stride(-1) != 1 and x.shape[-1] > 1:
            return False
    return kernels() is not None
