"""Schedules: the learning rate as a share of its peak, a pure function of the step.

A step may lie between two whole ones: after a plan was revised, its steps are longer or shorter than the schedule's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

from weft.foundation.errors import WeftError


class Schedule(Protocol):
    """share(step) in 0 .. 1, for steps from 0 to below `total`."""

    def share(self, step: float) -> float: ...


def _expect(total: int, warmup: int) -> None:
    if total < 1 or not 0 <= warmup <= total:
        raise WeftError(f"{warmup} warm-up steps of {total}: choose 0 <= warmup <= steps")


@dataclass(frozen=True)
class Cosine:
    """Linear warm-up, then half a cosine down to `floor` (Loshchilov and Hutter 2017)."""

    total: int
    warmup: int = 0
    floor: float = 0.0

    def __post_init__(self) -> None:
        _expect(self.total, self.warmup)

    def share(self, step: float) -> float:
        """(s + 1) / warmup, then floor + (1 - floor) (1 + cos(pi t)) / 2 with t from 0 to 1."""
        if step < self.warmup:
            return min(1.0, (step + 1) / self.warmup)
        t = min(1.0, (step - self.warmup) / max(1, self.total - self.warmup))
        return self.floor + (1 - self.floor) * 0.5 * (1 + math.cos(math.pi * t))


@dataclass(frozen=True)
class Trapezoid:
    """Linear warm-up, constant, linear decay over the last `decay` share of the steps to `floor`."""

    total: int
    warmup: int = 0
    decay: float = 0.5
    floor: float = 0.0

    def __post_init__(self) -> None:
        _expect(self.total, self.warmup)
        if not 0 <= self.decay <= 1:
            raise WeftError(f"a decay over {self.decay:g} of the steps: choose a share from 0 to 1")

    def share(self, step: float) -> float:
        """(s + 1) / warmup, then 1, then linearly down."""
        if step < self.warmup:
            return min(1.0, (step + 1) / self.warmup)
        last = self.decay * self.total
        left = self.total - step
        return 1.0 if left >= last or last == 0 else self.floor + (1 - self.floor) * max(0.0, left / last)


@dataclass(frozen=True)
class InverseRoot:
    """The original transformer's: D^-1/2 min(s^-1/2, s warmup^-3/2), as a share of its peak (Vaswani et al. 2017)."""

    total: int
    warmup: int = 4000

    def __post_init__(self) -> None:
        if self.warmup < 1:
            raise WeftError("the inverse square root needs at least one warm-up step")

    def share(self, step: float) -> float:
        """min(s / warmup, sqrt(warmup / s)) with s = step + 1."""
        s = step + 1
        return min(s / self.warmup, math.sqrt(self.warmup / s))
