"""Feed-forward: the MLP that works within each token, D -> F -> D.

Attention only re-averages values; this is where a token's vector is changed. Shapes: x [..., D] -> [..., D].
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weft.foundation.errors import WeftError
from weft.parts import native
from weft.parts.auxiliary import Auxiliary
from weft.parts.linear import Linear, ResidualLinear

Activation = Callable[[Tensor], Tensor]


def squared_relu(x: Tensor) -> Tensor:
    """max(x, 0)^2 (So et al. 2021)."""
    if not torch.is_grad_enabled():
        return F.relu(x).square()
    squared: Tensor = _SquaredRelu.apply(x)  # type: ignore[no-untyped-call]
    return squared


class _SquaredRelu(torch.autograd.Function):
    """Its slope is 2 max(x, 0): fewer passes over memory than relu and square take one after the other."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return F.relu(x).square()

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return 2 * F.relu(x) * slopes[0]


def gelu_tanh(x: Tensor) -> Tensor:
    """x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))): GELU without the error function (Hendrycks and Gimpel 2016)."""
    return native.gelu_tanh(x) if native.suits(x) else F.gelu(x, approximate="tanh")


def quick_gelu(x: Tensor) -> Tensor:
    """x sigmoid(1.702 x): the approximation of GELU by a sigmoid (Hendrycks and Gimpel 2016), as in CLIP."""
    return x * torch.sigmoid(1.702 * x)


ACTIVATIONS: dict[str, Activation] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu-tanh": gelu_tanh,
    "quick-gelu": quick_gelu,
    "silu": F.silu,
    "squared-relu": squared_relu,
    "sigmoid": F.sigmoid,
    "tanh": F.tanh,
}


def activation(name: str) -> Activation:
    """The activation of this name."""
    if name not in ACTIVATIONS:
        raise WeftError(f"there is no activation {name!r}: choose one of {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[name]


def classic_width(width: int) -> int:
    """F = 4 D."""
    return 4 * width


def gated_width(width: int, multiple: int = 8) -> int:
    """F = 8 D / 3, rounded up to a multiple: as many weights in three matrices as 4 D has in two."""
    return -(-8 * width // (3 * multiple)) * multiple


class FeedForward(nn.Module):
    """Classic: y = f(x W_1 + b_1) W_2 + b_2, with f ReLU, GELU, ... and F = 4 D (Vaswani et al. 2017)."""

    def __init__(
        self,
        width: int,
        hidden: int | None = None,
        activation_name: str = "gelu",
        bias: bool = True,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        hidden = hidden or classic_width(width)
        self.activation_name, self.dropout = activation_name, dropout
        self.activation = activation(activation_name)
        self.up = Linear(width, hidden, bias=bias)
        self.down = ResidualLinear(hidden, width, bias=bias)

    def forward(self, x: Tensor, auxiliary: Auxiliary | None = None) -> Tensor:
        """[..., D] -> [..., D]."""
        hidden = self.activation(self.up(x))
        return self.down(F.dropout(hidden, self.dropout) if self.training else hidden)


class GatedFeedForward(nn.Module):
    """Gated: y = (f(x W_1) * x W_2) W_3, F = 8 D / 3: SwiGLU (silu), GEGLU (gelu), ReGLU (relu) (Shazeer 2020).

    W_1 and W_2 are one product, `gate_up`: the first half of its rows is the gate.
    """

    def __init__(
        self,
        width: int,
        hidden: int | None = None,
        activation_name: str = "silu",
        bias: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        hidden = hidden or gated_width(width)
        self.activation_name, self.dropout = activation_name, dropout
        self.activation = activation(activation_name)
        self.gate_up = Linear(width, 2 * hidden, bias=bias)
        self.down = ResidualLinear(hidden, width, bias=bias)

    def forward(self, x: Tensor, auxiliary: Auxiliary | None = None) -> Tensor:
        """[..., D] -> [..., D]."""
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        return self.down(F.dropout(self.activation(gate) * up, self.dropout, self.training))
