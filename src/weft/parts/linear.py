"""Linear maps y = x W^T + b: torch's, with kernels of Weft's own where there are many rows on a CPU."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from weft.parts import native


def linear(x: Tensor, W: Tensor, b: Tensor | None = None) -> Tensor:
    """y = x W^T + b for x [..., K], W [N, K]."""
    return native.linear(x, W, b) if native.suits_linear(x, W, b) else F.linear(x, W, b)


class Linear(nn.Linear):
    """y = x W^T + b for x [..., K], W [N, K]; weights and names are those of `nn.Linear`."""

    def forward(self, x: Tensor) -> Tensor:
        """[..., K] -> [..., N]."""
        return linear(x, self.weight, self.bias)


class ResidualLinear(Linear):
    """A linear map whose result is added to the residual stream; initialization may scale or zero it."""


def is_plain_linear(part: nn.Module) -> bool:
    """Whether a part is a linear map and nothing else: no adapter, no rounding, no forward of its own."""
    return isinstance(part, nn.Linear) and type(part).forward in (nn.Linear.forward, Linear.forward)
