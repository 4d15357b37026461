"""How far a model's probabilities can be trusted: calibration of classes, coverage of bands, and when to abstain.

ECE = sum_b n_b / N |right_b - p_b| over 15 bins of equally many answers, sorted by their probability p (expected
calibration error, Naeini et al. 2015; equal mass as in Nguyen and O'Connor 2015).

Temperature scaling (Guo et al. 2017): p = softmax(z / T) with one number T for all answers, the one of the lowest loss
on held-out data. The answers stay as they are, their probabilities do not.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from weft.tasks.support.evaluation.resampling import Doubles

BINS = 15
TRUSTED = 0.02  # an ECE up to this is good enough whatever chance says
LEAST_ANSWERS = 30  # fewer do not tell a temperature
GAIN = 1e-4  # nats per answer that a temperature has to save
COLDEST, HOTTEST = 0.2, 5.0
HALVINGS = 30
TELLING = 0.3  # correlation from which on a confidence is of use
COVERAGES = np.linspace(0.05, 1.0, 20)


class ReliabilityRow(NamedTuple):
    """The number of answers, the mean of their probabilities, and the share of them that is right."""

    answers: int
    confidence: float
    accuracy: float


class Abstention(NamedTuple):
    """What is left when answers below the probability `least` are withheld; no accuracy where all are."""

    least: float
    answered: int
    coverage: float
    accuracy: float | None


@dataclass(frozen=True)
class Calibration:
    """The probability of each answer [N], and whether it is right [N]."""

    confidence: Doubles
    right: NDArray[np.bool_]

    def table(self, bins: int = BINS) -> list[ReliabilityRow]:
        """The reliability table: bins of equally many answers, the least probable first."""
        order = np.argsort(self.confidence, kind="stable")
        parts = np.array_split(order, max(1, min(bins, len(order))))
        return [
            ReliabilityRow(len(part), float(self.confidence[part].mean()), float(self.right[part].mean()))
            for part in parts
            if len(part)
        ]

    def error(self) -> float:
        """ECE, from 0 to 1."""
        rows = self.table()
        return sum(row.answers * abs(row.accuracy - row.confidence) for row in rows) / max(1, len(self.confidence))

    def error_by_chance(self) -> float:
        """The ECE of as many answers that are right exactly as often as their probabilities say, about.

        A bin's number of right answers has the deviation s_b = sqrt(sum p (1 - p)), and E|x| = sqrt(2 / pi) s_b.
        """
        ordered = np.sort(self.confidence)
        parts = np.array_split(ordered * (1 - ordered), max(1, min(BINS, len(ordered))))
        return float(math.sqrt(2 / math.pi) * sum(math.sqrt(part.sum()) for part in parts) / max(1, len(ordered)))

    def abstain(self, least: float) -> Abstention:
        """Answers of the probability `least` or more, and how many of them are right."""
        given = self.confidence >= least
        count = int(given.sum())
        right = float(self.right[given].mean()) if count else None
        return Abstention(least, count, count / max(1, len(given)), right)

    def risk_coverage(self) -> tuple[Doubles, Doubles]:
        """(shares of the answers that are given, the most probable first; accuracy of each)."""
        order = np.argsort(-self.confidence, kind="stable")
        counts = np.unique(np.maximum(1, np.rint(COVERAGES * len(order)).astype(np.int64)))
        right = np.cumsum(self.right[order])
        return counts / len(order), right[counts - 1] / counts

    def describe(self) -> str:
        """In one sentence, whether the probabilities can be trusted."""
        said, right, error, chance = self.confidence.mean(), self.right.mean(), self.error(), self.error_by_chance()
        figures = f"ECE {error:.3f}; chance alone gives about {chance:.3f} with {len(self.right):,} answers"
        if error <= max(TRUSTED, 2 * chance):
            return f"the probabilities are as often right as they say ({figures})"
        means = f"{said:.3f} on average, but {right:.3f} of the answers are right ({figures})"
        if abs(said - right) < error / 2:
            return f"the probabilities are MISLEADING, some too high and others too low: {means}"
        return f"the model is {'OVERCONFIDENT' if said > right else 'UNDERCONFIDENT'}: it says {means}"


def fit_temperature(logits: Doubles, truth: NDArray[np.int64]) -> float:
    """T of the lowest loss of softmax(logits / T), logits [N, C]; 1 where it does not help on answers not fitted.

    It is fitted on either half of the answers and judged on the other, then on all. The loss is convex in b = 1 / T:
    its derivative mean(E_b[z] - z_y) is followed to 0 by bisection. Labels are smoothed by 1 / (N + 2), as Platt (1999)
    does: a model that makes no mistake on N answers is not certain of the next.
    """
    if len(truth) < LEAST_ANSWERS or logits.shape[1] < 2:
        return 1.0
    halves = [slice(first, None, 2) for first in (0, 1)]
    before = after = 0.0
    for fitted, judged in (halves, halves[::-1]):
        temperature = _best_temperature(logits[fitted], truth[fitted])
        before += _loss(logits[judged], truth[judged])
        after += _loss(logits[judged] / temperature, truth[judged])
    return round(_best_temperature(logits, truth), 4) if before - after > GAIN * len(truth) else 1.0


def calibrated_loss(logits: Doubles, truth: NDArray[np.int64]) -> float:
    """Nats of all answers at the temperature of the lowest loss, logits [N, C]."""
    return _loss(logits / _best_temperature(logits, truth), truth)


def _best_temperature(logits: Doubles, truth: NDArray[np.int64]) -> float:
    smoothing = 1 / (len(truth) + 2)
    rows = np.arange(len(truth))
    wanted = float(((1 - smoothing) * logits[rows, truth] + smoothing * logits.mean(1)).mean())
    low, high = 1 / HOTTEST, 1 / COLDEST
    for _ in range(HALVINGS):
        middle = math.sqrt(low * high)
        scaled = middle * logits
        shares = np.exp(scaled - scaled.max(1, keepdims=True))
        found = float(((shares * logits).sum(1) / shares.sum(1)).mean())
        low, high = (middle, high) if found < wanted else (low, middle)
    return 1 / math.sqrt(low * high)


def _loss(logits: Doubles, truth: NDArray[np.int64]) -> float:
    """Nats of all answers."""
    top = logits.max(1, keepdims=True)
    total = np.log(np.exp(logits - top).sum(1)) + top[:, 0]
    return float((total - logits[np.arange(len(truth)), truth]).sum())


def describe_coverage(coverage: float, promised: float, ends: Sequence[float] | None = None) -> str:
    """In one sentence, whether bands hold as many values as they promise."""
    share = f"the {promised:.0%} bands hold {coverage:.1%} of the held-out values"
    known = "" if ends is None else f" (95 %: {ends[0]:.1%} to {ends[1]:.1%})"
    if (ends is not None and ends[0] <= promised <= ends[1]) or abs(coverage - promised) <= TRUSTED:
        return f"{share}{known}, as promised"
    return f"the bands are TOO {'NARROW' if coverage < promised else 'WIDE'}: {share}{known}"


def describe_correlation(correlation: float, most: float = 1.0) -> str:
    """In one sentence, whether a confidence tells good texts from bad ones, by Spearman's correlation with chrF.

    `most`: the largest that there can be, because texts that are equally good share a rank.
    """
    tells = "tells" if most > 0 and correlation >= TELLING * most else "HARDLY TELLS"
    bound = "" if most > 0.95 else f", where {most:.2f} is the most that texts of equal chrF allow"
    return (
        f"the confidence {tells} good texts from bad ones: Spearman's correlation with chrF is {correlation:.2f}{bound}"
    )


def tells_fault(sentence: str) -> bool:
    """Whether a sentence of this file tells of a fault: then it has a word in capitals."""
    return re.search(r"[A-Z]{4,}", sentence) is not None
