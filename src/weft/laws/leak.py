"""Leaks: outputs that change with inputs that they must not depend on, told apart from rounding.

Both runs have the same shape, so a sound dense model differs by exactly 0.0. Elsewhere rounding may depend on the other
inputs (experts are given other numbers of rows, a Fourier transform mixes all places). The change of the input is then
repeated 1,000 and 1,000,000 times as large: a leak grows with it, rounding much less.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

FACTORS = (1.0, 1e3, 1e6)
GROWTH = 1e-2  # rounding grows at most by this share of the factor: a Fourier transform rounds by the largest input


@dataclass(frozen=True)
class Leak:
    """How much outputs change, and the factor of the input's change at which it is too much for rounding (or None)."""

    value: float
    factor: float | None = None

    @property
    def found(self) -> bool:
        return self.factor is not None

    @property
    def words(self) -> str:
        """The figure as text."""
        if self.factor is None:
            return "exactly 0.0" if self.value == 0 else f"{self.value:.2g} (rounding: it does not grow with the input)"
        return f"{self.value:.2g}" + ("" if self.factor == 1 else f" (the input's change times {self.factor:g})")


def judge_leak(change: Callable[[float], float], rounding: Callable[[], float]) -> Leak:
    """`change(factor)`: what outputs that must not change do change by. `rounding()`: what rounding does at most."""
    first = change(1.0)
    if first == 0:
        return Leak(0.0)
    limit = rounding()
    for factor in FACTORS:
        value = first if factor == 1 else change(factor)
        if value > limit * max(1.0, GROWTH * factor):
            return Leak(value, factor)
    return Leak(first)


@contextmanager
def amplified(module: nn.Module, before: Tensor, after: Tensor, factor: float) -> Iterator[Tensor]:
    """The content `after`, its difference from `before` times `factor`; of tokens, their embeddings there times that.

    The embedding is the first submodule to finish that was given the tokens. Where there is none, or a norm follows,
    nothing grows, and the change itself has to show the leak.
    """
    if factor == 1 or before.is_floating_point():
        yield after if factor == 1 else before + factor * (after - before)
        return
    places = (before != after).flatten(2).any(2) if before.dim() > 2 else before != after
    done = False

    def embed(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> Tensor | None:
        nonlocal done
        given = next((x for x in (*args, *kwargs.values()) if isinstance(x, Tensor)), None)
        if done or given is None or given.shape != after.shape or not torch.equal(given, after):
            return None
        done = isinstance(out, Tensor) and out.dim() == 3 and out.is_floating_point() and out.shape[:2] == places.shape
        return torch.where(places[..., None], factor * out, out) if done else None

    hooks = [part.register_forward_hook(embed, with_kwargs=True) for part in module.modules()]
    try:
        yield after
    finally:
        for hook in hooks:
            hook.remove()
