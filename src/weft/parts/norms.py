"""Norms: each token's vector is brought to unit scale. Statistics are taken over D only, in float32 or wider."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weft.foundation.numerics import widen
from weft.parts import native


def layer_norm(x: Tensor, gamma: Tensor, beta: Tensor | None = None, epsilon: float = 1e-5) -> Tensor:
    """y = (x - mean x) / sqrt(var x + eps) * gamma + beta, over the last axis (Ba et al. 2016)."""
    if native.suits(x, gamma, *(() if beta is None else (beta,))):
        return native.layer_norm(x, gamma, beta, epsilon)
    wide = widen(x)
    gamma, beta = _like(gamma, wide), None if beta is None else _like(beta, wide)
    return _like(F.layer_norm(wide, x.shape[-1:], gamma, beta, epsilon), x)


def rms_norm(x: Tensor, gamma: Tensor, epsilon: float = 1e-6) -> Tensor:
    """y = x / sqrt(eps + mean x^2) * gamma, over the last axis (Zhang and Sennrich 2019)."""
    wide = widen(x)
    gamma = _like(gamma, wide)
    if x.device.type != "cpu" or torch.compiler.is_compiling():
        return _like(F.rms_norm(wide, x.shape[-1:], gamma, epsilon), x)
    if not torch.is_grad_enabled():
        return _like(unit_rows(wide, *unit_terms(gamma, epsilon)), x)
    normed: Tensor = _RMSNorm.apply(wide, gamma, epsilon)  # type: ignore[no-untyped-call]
    return _like(normed, x)


def unit_terms(gamma: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    """What `unit_rows` needs of gamma [..., D] and eps: sqrt(D eps) and sqrt(D) gamma."""
    D = gamma.shape[-1]
    return gamma.new_full((), math.sqrt(D * epsilon)), gamma * math.sqrt(D)


def unit_rows(x: Tensor, floor: Tensor, scale: Tensor) -> Tensor:
    """`rms_norm` where no gradient flows: |x| and sqrt(D eps) have the hypotenuse sqrt(D (eps + mean x^2)).

    Fewer steps and fewer passes over x.
    """
    root = torch.hypot(torch.linalg.vector_norm(x, dim=-1, keepdim=True), floor)
    return (x / root).mul_(scale)


def _root(x: Tensor, epsilon: float) -> Tensor:
    """1 / sqrt(eps + mean x^2)."""
    return (x.square().mean(-1, keepdim=True) + epsilon).rsqrt()


class _RMSNorm(torch.autograd.Function):
    """On CPUs torch's own takes many passes forth and back; with r = 1 / sqrt(eps + mean x^2) and g = slope * gamma:

    dx = r (g - x r mean(g x r)),  dgamma = sum(slope * x r)
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, gamma: Tensor, epsilon: float) -> Tensor:
        ctx.save_for_backward(x, gamma)
        ctx.epsilon = epsilon
        return x * _root(x, epsilon) * gamma

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor, Tensor, None]:
        x, gamma = ctx.saved_tensors
        r = _root(x, ctx.epsilon)
        unit, slope = x * r, slopes[0]
        g = slope * gamma
        dx = r * torch.addcmul(g, unit, (g * unit).mean(-1, keepdim=True), value=-1)
        return dx, (slope * unit).flatten(0, -2).sum(0) if x.dim() > 1 else slope * unit, None


def _like(x: Tensor, other: Tensor) -> Tensor:
    return x if x.dtype == other.dtype else x.to(other.dtype)


class Norm(nn.Module):
    """A norm over the last axis, with its scale gamma, which starts at `START`."""

    START: ClassVar[float] = 1.0

    def __init__(self, width: int, epsilon: float) -> None:
        super().__init__()
        self.epsilon = epsilon
        self.gamma = nn.Parameter(torch.full((width,), self.START))

    def scale(self) -> Tensor:
        """What unit vectors are multiplied with."""
        return self.gamma


class LayerNorm(Norm):
    """See `layer_norm`; the bias beta is optional."""

    def __init__(self, width: int, epsilon: float = 1e-5, bias: bool = True) -> None:
        super().__init__(width, epsilon)
        self.beta = nn.Parameter(torch.zeros(width)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        """[..., D] -> [..., D]."""
        return layer_norm(x, self.gamma, self.beta, self.epsilon)


class RMSNorm(Norm):
    """See `rms_norm`."""

    def __init__(self, width: int, epsilon: float = 1e-6) -> None:
        super().__init__(width, epsilon)

    def forward(self, x: Tensor) -> Tensor:
        """[..., D] -> [..., D]."""
        return rms_norm(x, self.gamma, self.epsilon)


class ZeroCenteredRMSNorm(Norm):
    """y = x / sqrt(eps + mean x^2) * (1 + gamma): weight decay pulls the scale to 1, not to 0 (Gemma)."""

    START: ClassVar[float] = 0.0

    def __init__(self, width: int, epsilon: float = 1e-6) -> None:
        super().__init__(width, epsilon)

    def scale(self) -> Tensor:
        """1 + gamma, in float32 or wider."""
        return 1.0 + widen(self.gamma)

    def forward(self, x: Tensor) -> Tensor:
        """[..., D] -> [..., D]."""
        return rms_norm(x, self.scale(), self.epsilon)


class NoNorm(Norm):
    """x as it is: for inputs that are scaled already, where a norm would hide how large they are."""

    def __init__(self) -> None:
        nn.Module.__init__(self)

    def forward(self, x: Tensor) -> Tensor:
        """[..., D], unchanged."""
        return x
