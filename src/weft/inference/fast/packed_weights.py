"""Packed weights: x W^T + b for a few rows at a time, where reading W is all the work.

Decoding multiplies one row by every matrix of the model, so its speed is that of reading memory. On CPUs oneDNN reads
a matrix that was packed into its own layout at almost twice the rate of the plain product; small matrices fit the
cache and are left as they are. A packed matrix is a copy: it is made once, and again when its weight has changed.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weft.parts.linear import is_plain_linear

LinearFunction = Callable[[Tensor], Tensor]

WORTH_PACKING = 1 << 18


def linear_function(linear: nn.Module) -> LinearFunction:
    """The fastest way to apply a linear layer to few rows; anything but a plain one is applied as it is."""
    if not isinstance(linear, nn.Linear) or not is_plain_linear(linear):
        return linear
    return packed_linear(linear.weight, linear.bias)


def packed_linear(weight: Tensor, bias: Tensor | None = None) -> LinearFunction:
    """x -> x W^T + b for W [C, D]."""
    weight, bias = weight.detach(), None if bias is None else bias.detach()
    if not packs(weight):
        return partial(_plain, weight, bias)
    return partial(_packed, torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), 1), bias)


def packs(weight: Tensor) -> bool:
    """Whether a packed copy is faster and fits into memory."""
    return (
        weight.device.type == "cpu"
        and weight.dtype == torch.float32
        and weight.numel() >= WORTH_PACKING
        and torch.backends.mkldnn.is_available()
        and 8 * weight.numel() < free_memory()
    )


def _plain(weight: Tensor, bias: Tensor | None, x: Tensor) -> Tensor:
    return F.linear(x, weight, bias)


def _packed(weight: Tensor, bias: Tensor | None, x: Tensor) -> Tensor:
    y: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return y


def free_memory() -> int:
    """Bytes that nobody uses."""
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):
        return 1 << 32
