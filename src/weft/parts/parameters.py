"""Weights as they are before `initialization` fills them: small random numbers, so that a part alone works too."""

from __future__ import annotations

import torch
from torch import nn


def normal_parameter(*shape: int, std: float = 0.02) -> nn.Parameter:
    """A parameter N(0, std^2); on the meta device only its shape (drawing there would load torch's compiler)."""
    weight = torch.empty(shape)
    return nn.Parameter(weight if weight.is_meta else weight.normal_(0.0, std))
