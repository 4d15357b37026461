"""Clipping: gradients are scaled so that their norm over all weights is at most a bound (Pascanu et al. 2013)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from weft.parts.native import suits
from weft.training.native.library import pointers, sizes, updates

ABOVE_ZERO = 1e-6  # added to the norm, as torch does


def clip_gradients(weights: Sequence[Tensor], most: float) -> Tensor:
    """g <- g min(1, most / |g|) for the gradient g of all weights; gives |g| as it was before.

    Where |g| is small enough nothing is multiplied.
    """
    gradients = [w.grad for w in weights if w.grad is not None]
    found = updates()
    if found is None or not suits(*gradients):
        return nn.utils.clip_grad_norm_(weights, most, foreach=True)
    where, counts, threads = pointers(gradients), sizes(gradients), torch.get_num_threads()
    norm: float = found.weft_norm(where, counts, len(gradients), threads)
    if norm + ABOVE_ZERO > most:
        found.weft_scale(where, counts, len(gradients), most / (norm + ABOVE_ZERO), threads)
    return torch.tensor(norm)
