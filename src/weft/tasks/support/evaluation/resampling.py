"""How sure a metric is: bootstrap intervals and paired tests over examples.

A metric here is a function of sums over examples, as accuracy, F1, BLEU and mean losses are: example i adds a row s_i
[K], and the metric is f(sum_i s_i). A resample only weights the rows anew, so the model runs once.

Interval: percentiles of f over resamples with replacement (Efron 1979). Difference of two models on the same examples:
the same resamples for both (paired bootstrap, Koehn 2004). p-value: the share of random exchanges of the two models'
rows that differ at least as much (approximate randomization, Noreen 1989; Riezler and Maxwell 2005).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from weft.foundation.errors import WeftError

Doubles = NDArray[np.float64]
RESAMPLES = 1000
LEVEL = 0.95
MOST_UNITS = 10_000  # more examples are put together at random before they are resampled
SAME = 1e-12


@dataclass(frozen=True)
class Statistic:
    """What each example adds, rows [N, K], and the metric of their sum: [..., K] -> [...]."""

    rows: Doubles
    value: Callable[[Doubles], Doubles]

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def point(self) -> float:
        """The metric over all examples."""
        return float(self.value(self.rows.sum(0)))

    def grouped(self, seed: int = 0) -> Statistic:
        """At most MOST_UNITS rows, each the sum of some examples; the same examples for the same number and seed."""
        if len(self) <= MOST_UNITS:
            return self
        order = np.random.default_rng(seed).permutation(len(self))
        starts = np.arange(MOST_UNITS) * len(self) // MOST_UNITS
        return Statistic(np.add.reduceat(self.rows[order], starts, axis=0), self.value)


@dataclass(frozen=True)
class PairedTest:
    """The difference b - a of a metric, its 95 % interval, and the probability of such a difference by chance."""

    difference: float
    low: float
    high: float
    p_value: float
    examples: int


def interval(statistic: Statistic, seed: int = 0, resamples: int = RESAMPLES) -> tuple[float, float] | None:
    """The 95 % interval of a metric; None where examples do not vary, of which resampling says nothing."""
    units = statistic.grouped(seed)
    if len(units) < 2:
        return None
    low, high = _percentiles(units.value(_resampled_sums(units.rows, seed, resamples)))
    return None if high - low <= SAME else (low, high)


def paired_test(a: Statistic, b: Statistic, seed: int = 0, resamples: int = RESAMPLES) -> PairedTest:
    """How a metric of b differs from that of a, on the same examples."""
    if a.rows.shape != b.rows.shape:
        raise WeftError(
            f"{len(a)} examples of one model and {len(b)} of the other are no pairs: score both on the same data"
        )
    examples, observed = len(a), b.point - a.point
    a, b = a.grouped(seed), b.grouped(seed)
    sums = _resampled_sums(np.concatenate((a.rows, b.rows), 1), seed, resamples)
    width = a.rows.shape[1]
    low, high = _percentiles(b.value(sums[:, width:]) - a.value(sums[:, :width]))
    moved = _exchanged_sums(b.rows - a.rows, seed, resamples)
    by_chance = b.value(b.rows.sum(0) - moved) - a.value(a.rows.sum(0) + moved)
    extreme = int((np.abs(by_chance) >= abs(observed) - SAME).sum())
    return PairedTest(observed, low, high, (1 + extreme) / (1 + resamples), examples)


def _resampled_sums(rows: Doubles, seed: int, resamples: int) -> Doubles:
    """Sums of as many rows, drawn with replacement: [resamples, K]."""
    random = np.random.default_rng(seed)
    count = len(rows)
    found = np.empty((resamples, rows.shape[1]))
    for number in range(resamples):
        times = np.bincount(random.integers(count, size=count), minlength=count)
        found[number] = times.astype(np.float64) @ rows
    return found


def _exchanged_sums(differences: Doubles, seed: int, resamples: int) -> Doubles:
    """Sums of the rows that a fair coin chooses: [resamples, K]."""
    random = np.random.default_rng([seed, 1])
    found = np.empty((resamples, differences.shape[1]))
    for number in range(resamples):
        found[number] = random.integers(2, size=len(differences)).astype(np.float64) @ differences
    return found


def _percentiles(values: Doubles) -> tuple[float, float]:
    low, high = np.quantile(values, ((1 - LEVEL) / 2, (1 + LEVEL) / 2))
    return float(low), float(high)
