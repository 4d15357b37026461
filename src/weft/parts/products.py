"""Products of a linear map y = x W^T and its gradients, into memory that is there: native where that is faster."""

from __future__ import annotations

import torch
from torch import Tensor

from weft.parts import native


def multiply(x: Tensor, W: Tensor, out: Tensor, add: bool = False) -> Tensor:
    """out = x W^T for x [M, K], W [N, K], or out + x W^T."""
    if native.suits_linear(x, W) and native.suits(out) and out.shape == (len(x), len(W)):
        return native.linear_into(out, x, W, add=add)
    return torch.addmm(out, x, W.T, beta=1 if add else 0, out=out)


def slope_of_input(dy: Tensor, W: Tensor, out: Tensor, add: bool = False) -> Tensor:
    """out = dy W for dy [M, N], W [N, K], or out + dy W: what the loss says to x."""
    if native.suits_slopes(dy, out, W):
        return native.linear_to_x(out, dy, W, add)
    return torch.addmm(out, dy, W, beta=1 if add else 0, out=out)


def slope_of_weights(dy: Tensor, x: Tensor, out: Tensor, add: bool = False) -> Tensor:
    """out = dy^T x for dy [M, N], x [M, K], or out + dy^T x: what the loss says to W."""
    if native.suits_slopes(dy, x, out):
        return native.linear_to_weights(out, dy, x, add=add)
    return torch.addmm(out, dy.T, x, beta=1 if add else 0, out=out)
