"""Exponential moving averages of weights, and gradient checkpointing of blocks."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from weft.parts.stack import Stack
from weft.training.parallel.local_tensors import local


class MovingAverage:
    """Exponential moving average: a <- d a + (1 - d) w, with d growing to `decay` over the first steps."""

    def __init__(self, module: nn.Module, decay: float) -> None:
        self.decay = decay
        self.shadow: dict[str, Tensor] = {
            name: weight.detach().clone() for name, weight in module.named_parameters() if weight.requires_grad
        }

    @torch.no_grad()
    def update(self, module: nn.Module, step: int) -> None:
        d = min(self.decay, (1 + step) / (10 + step))
        named = dict(module.named_parameters())
        weights = [local(named[name].detach()) for name in self.shadow]
        torch._foreach_lerp_([local(average) for average in self.shadow.values()], weights, 1 - d)

    @contextlib.contextmanager
    def swapped(self, module: nn.Module) -> Iterator[None]:
        """Inside, the module has the averaged weights; afterwards its own again."""
        named = dict(module.named_parameters())
        own = {name: named[name].detach().clone() for name in self.shadow}
        with torch.no_grad():
            for name, value in self.shadow.items():
                named[name].copy_(value)
        try:
            yield
        finally:
            with torch.no_grad():
                for name, value in own.items():
                    named[name].copy_(value)


def recompute_blocks(module: nn.Module) -> None:
    """Gradient checkpointing: each block keeps only its input and repeats its forward pass in the backward pass."""
    for part in module.modules():
        if isinstance(part, Stack):
            for block in part.blocks:
                block.forward = partial(_recomputed, block, block.forward)


def _recomputed(block: nn.Module, forward: Callable[..., Any], *args: Any, **more: Any) -> Any:
    if not (block.training and torch.is_grad_enabled()):
        return forward(*args, **more)
    return checkpoint(partial(forward, **more), *args, use_reentrant=False)
