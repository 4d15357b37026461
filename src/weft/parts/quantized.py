"""Quantized: int8 weights as a drop-in for linear layers; a quarter of the memory to keep.

    W_ci ~ s_c q_ci, q in -127 .. 127, s_c = max_i |W_ci| / 127; one scale per output row.

Activations stay in floating point, so a row's result depends on that row alone: batch company changes nothing.
"""

from __future__ import annotations

import threading

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_scratch = threading.local()


def quantize_rows(weight: Tensor) -> tuple[Tensor, Tensor]:
    """(q int8 [C, D], s [C]) with weight ~ s_c q_ci."""
    scale = weight.detach().abs().amax(1).clamp(min=1e-12) / 127
    return (weight.detach() / scale[:, None]).round().clamp(-127, 127).to(torch.int8), scale


def _widened(weight: Tensor, like: Tensor) -> Tensor:
    """The int8 weight in the type of the activations.

    Without gradients a reused buffer takes it: a fresh one costs more in page faults than the product.
    """
    if (torch.is_grad_enabled() and like.requires_grad) or torch.compiler.is_compiling():
        return weight.to(like.dtype)
    buffers: dict[object, Tensor] = _scratch.__dict__.setdefault("buffers", {})
    key = (weight.shape, like.dtype, weight.device)
    if key not in buffers:
        buffers[key] = torch.empty(weight.shape, dtype=like.dtype, device=weight.device)
    return buffers[key].copy_(weight)


class Int8Linear(nn.Module):
    """y = (x q^T) * s + b: a linear layer with int8 weights."""

    weight: Tensor
    scale: Tensor
    bias: Tensor | None

    def __init__(self, weight: Tensor, scale: Tensor, bias: Tensor | None = None) -> None:
        super().__init__()
        self.register_buffer("weight", weight)
        self.register_buffer("scale", scale)
        self.register_buffer("bias", bias)

    @staticmethod
    def of(linear: nn.Linear) -> Int8Linear:
        """Quantize a linear layer; one with an adapter as what both are together."""
        merged = getattr(linear, "merged", None)
        linear = linear if merged is None else merged()
        bias = None if linear.bias is None else linear.bias.detach().clone()
        return Int8Linear(*quantize_rows(linear.weight), bias)

    @property
    def in_features(self) -> int:
        return self.weight.shape[1]

    @property
    def out_features(self) -> int:
        return self.weight.shape[0]

    def dequantized(self) -> Tensor:
        """s_c q_ci as a float matrix [C, D]."""
        return self.weight * self.scale[:, None]

    def forward(self, x: Tensor) -> Tensor:
        """[..., D] -> [..., C]."""
        y = F.linear(x, _widened(self.weight, x)) * self.scale.to(x.dtype)
        return y if self.bias is None else y + self.bias.to(x.dtype)


def quantize(module: nn.Module) -> nn.Module:
    """Put an `Int8Linear` in the place of every linear layer inside `module`; a linear layer alone gives its own.

    Embeddings, norms, routers and the stacked matrices of experts stay as they are.
    """
    if isinstance(module, nn.Linear):
        return Int8Linear.of(module)
    for name, child in module.named_children():
        if isinstance(child, nn.Linear):
            setattr(module, name, Int8Linear.of(child))
        else:
            quantize(child)
    return module
