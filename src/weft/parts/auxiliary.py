"""Auxiliary: what a forward pass reports beside its result (expert losses, routing), passed in, never hidden."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import torch
from torch import Tensor


class Auxiliary:
    """Collected while a stack runs. `real` [B, T] marks real tokens, so that padding counts in no statistic.

    No dataclass: FSDP copies those that a block is called with, and what is added to a copy is lost.
    """

    def __init__(self, real: Tensor | None = None) -> None:
        self.real = real
        self.values: dict[str, list[Tensor]] = {}

    def add(self, name: str, value: Tensor) -> None:
        """One layer's value of `name`."""
        self.values.setdefault(name, []).append(value)

    def summary(self) -> dict[str, Tensor]:
        """Losses as means over the layers, all else stacked by layer."""
        return {
            name: torch.stack(found).mean() if name.endswith("loss") else torch.stack(found)
            for name, found in self.values.items()
        }


_summing: list[Callable[[Tensor], Tensor]] = []


def batch_sum(x: Tensor) -> Tensor:
    """`x`, a sum over the tokens here, as the sum over the whole batch: more than `x` inside of `summing_by`."""
    return _summing[-1](x) if _summing else x


@contextlib.contextmanager
def summing_by(add: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """Inside, `batch_sum` is `add`: where a batch is spread over several processes, the sum over all of them."""
    _summing.append(add)
    try:
        yield
    finally:
        _summing.pop()
