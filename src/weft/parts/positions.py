"""Positions at the first layer: vectors added or concatenated to the tokens', learned or fixed by a formula.

Without them a sequence is a set: permuting the inputs of self-attention permutes its outputs. Positions that act
inside attention (relative ones) are in `relative.py`, those of image grids in `grid_positions.py`.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn

from weft.foundation.errors import LengthError
from weft.foundation.numerics import wide
from weft.parts.parameters import normal_parameter
from weft.parts.token_positions import TokenPositions

Join = Literal["add", "concatenate"]
Layout = Literal["interleaved", "halves"]


def sinusoids(
    positions: Tensor, width: int, dtype: torch.dtype = torch.float32, layout: Layout = "interleaved"
) -> Tensor:
    """p_(t,2i) = sin(t / 10000^(2i/D)), p_(t,2i+1) = cos(t / 10000^(2i/D)); [...] -> [..., D] (Vaswani et al. 2017).

    In `halves` all sines stand before all cosines, as in tensor2tensor and Marian.
    """
    half = torch.arange(0, width, 2, device=positions.device, dtype=wide(dtype))
    angles = positions[..., None].to(wide(dtype)) * torch.exp(half * (-math.log(10_000.0) / width))
    waves = torch.stack((angles.sin(), angles.cos()), dim=-1 if layout == "interleaved" else -2)
    if layout == "halves" and width % 2:
        return torch.cat((waves[..., 0, :], waves[..., 1, :-1]), dim=-1).to(dtype)
    return waves.flatten(-2)[..., :width].to(dtype)


def join_positions(x: Tensor, p: Tensor, join: Join) -> Tensor:
    """x + p, or [x; p]."""
    return x + p if join == "add" else torch.cat((x, p.expand(*x.shape[:-1], -1)), dim=-1)


class LearnedPositions(nn.Module):
    """A table P [n, D] of learned vectors: flexible, but it cannot go past n, and late rows see few examples."""

    def __init__(self, length: int, width: int, join: Join = "add") -> None:
        super().__init__()
        self.length, self.join = length, join
        self.table = normal_parameter(length, width)

    def forward(self, x: Tensor, token_positions: TokenPositions) -> Tensor:
        """[B, T, D'] -> [B, T, D]; past the end raises `LengthError`."""
        first = token_positions.start if token_positions.plain else None
        last = (
            (int(token_positions.positions.max()) if token_positions.positions.numel() else -1)
            if first is None
            else first + token_positions.length - 1
        )
        if last >= self.length:
            raise LengthError(
                f"{last + 1} tokens, but the learned positions hold {self.length}: "
                "raise `length`, shorten the input or use rotary positions"
            )
        if first is not None:
            p = self.table[first : first + token_positions.length][None]
        else:
            p = self.table[token_positions.positions.clamp(min=0)]
        return join_positions(x, p, self.join)


class SinusoidalPositions(nn.Module):
    """Fixed by a formula, for any length: see `sinusoids`."""

    def __init__(self, width: int, join: Join = "add", layout: Layout = "interleaved") -> None:
        super().__init__()
        self.width, self.join = width, join
        self.layout: Layout = layout

    def forward(self, x: Tensor, token_positions: TokenPositions) -> Tensor:
        """[B, T, D'] -> [B, T, D]."""
        return join_positions(x, sinusoids(token_positions.positions, self.width, x.dtype, self.layout), self.join)
