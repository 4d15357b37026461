"""Who is ahead in a race of sizes: held-out losses, extrapolated to the end of each entrant's training.

Let D be the tokens that were read, as much as they are worth (`scaling`). Entrant i has

    L_i(D) = c_i + a (D_0 / D)^b / b,

with one slope a, the fall per unit of ln D at D_0, and one bend b for all: b = 0.28 is the scaling law, b near 0 a
straight line over ln D, as losses of the first minutes often fall. The first points are left out: there losses fall
faster than by any law. For each b of a grid, a follows by least squares from the falls of all entrants, held near what
is usual, and so small that no loss L falls below L (D / D_end)^0.28, where a scaling law has no entropy left; each b
counts as far as the points speak for it. So the losses at the end come with errors: of the noise, the slope, the bend,
and the law.

What the formula expects of the entrants' differences is a prior, of a known error. Both are taken to be Gaussian, so
the losses to be expected weigh them by their precisions: where points tell little, the formula decides.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from weft.training.planning.scaling import BETA, data_loss, worth

KEPT = 0.4  # points from this share of an entrant's tokens on are fitted
BENDS = (0.02, 0.1, 0.19, BETA)
SLOPE, SLOPE_ERROR = 0.12, 0.07  # of the loss: the usual slope
NOISE, NOISE_POINTS = 0.007, 3  # of the loss: what is thought of the noise before, as if so many residuals had said so
CHANGE = 0.15  # of the slope: by so much it may change otherwise than by the law
LAW_ERROR = 0.005  # of the loss: how wrong the law is about each entrant
FORMULA_ERROR = 0.1  # of the loss: how wrong the formula is about each entrant
LEAST_TIE = 0.003  # of the loss: sizes this near to each other are equally good
CLEAR = 3.0  # times the error of a difference, with which the race is decided before its end
CLEAR_LEAD = 0.03  # and of the loss, at least

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Curve:
    """Held-out losses of an entrant: (tokens, loss) with growing tokens, its tokens at the end of training, and the
    loss that the formula expects, above an entropy that is not known."""

    points: Sequence[tuple[float, float]]
    end: float
    expected: float = 0.0


@dataclass(frozen=True)
class Standing:
    """The numbers of entrants, the best first; by number, the losses to be expected at the end and their standard
    errors; what one nat of the formula is in nats of the data; whether the first is `clear` of all others."""

    order: tuple[int, ...]
    losses: tuple[float, ...]
    errors: tuple[float, ...]
    scale: float
    clear: bool


@dataclass(frozen=True)
class Extrapolation:
    """The entrants' losses at the end by their points alone: `losses` [n] with their `covariance` [n, n]."""

    losses: Floats
    covariance: Floats
    slope: float


def standing(curves: Sequence[Curve], unique: float) -> Standing:
    """Where each entrant will end; `unique` are the tokens of one epoch.

    Entrants come in the order in which the formula ranks them: of two that are equally good, the earlier one is better.
    """
    seen = extrapolate(curves, unique)
    # By the formula the slope of entrant i is BETA s data_loss(D_i).
    laws = [BETA * data_loss(curve.points[-1][0], unique) for curve in curves]
    scale = seen.slope / (sum(laws) / len(laws))
    losses, covariance = _with_prior(seen, scale * np.array([curve.expected for curve in curves]))
    left, order = list(range(len(curves))), []
    while left:
        best = min(left, key=lambda number: losses[number])
        order.append(min(n for n in left if losses[n] - losses[best] <= LEAST_TIE * abs(losses[best])))
        left.remove(order[-1])
    first, lead = order[0], math.inf
    for other in order[1:]:
        apart = losses[other] - losses[first]
        error = math.sqrt(covariance[first, first] + covariance[other, other] - 2 * covariance[first, other])
        lead = min(lead, apart - max(CLEAR * error, CLEAR_LEAD * abs(losses[first])))
    errors = np.sqrt(np.diag(covariance))
    return Standing(tuple(order), tuple(losses.tolist()), tuple(errors.tolist()), scale, bool(lead > 0))


def extrapolate(curves: Sequence[Curve], unique: float) -> Extrapolation:
    """Losses at the end by the law of the file's head, over all of its bends, with their errors."""
    level = max(1e-9, float(np.mean([abs(curve.points[-1][1]) for curve in curves])))
    late = [_late(curve.points) for curve in curves]
    tokens = [np.array([worth(one, unique) for one, _ in points]) for points in late]
    losses = [np.array([loss for _, loss in points]) for points in late]
    ends = np.array([max(worth(curve.end, unique), own[-1]) for curve, own in zip(curves, tokens, strict=True)])
    fits = [_fit(bend, tokens, losses, ends, level) for bend in BENDS]
    weights = np.exp([fit.weight - max(one.weight for one in fits) for fit in fits])
    weights /= weights.sum()

    def mean(numbers: Sequence[Floats]) -> Floats:
        return np.tensordot(weights, np.array(numbers), 1)

    at_end = mean([fit.losses for fit in fits])
    apart = [fit.covariance + np.outer(fit.losses - at_end, fit.losses - at_end) for fit in fits]
    slope = float(mean([np.array(fit.slope) for fit in fits]))
    return Extrapolation(at_end, mean(apart) + (LAW_ERROR * level) ** 2 * np.eye(len(curves)), slope)


def _late(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The points that are fitted, two at least if there are."""
    late = [point for point in points if point[0] >= KEPT * points[-1][0]]
    return late if len(late) > 1 else list(points[-2:])


@dataclass(frozen=True)
class _Fit(Extrapolation):
    """The law with one bend: `weight` is the logarithm of how much the points speak for it."""

    weight: float


def _fit(bend: float, tokens: Sequence[Floats], losses: Sequence[Floats], ends: Floats, level: float) -> _Fit:
    """Least squares for c_i and a, with what is usual as further points."""
    start = float(np.exp(np.mean([math.log(own[-1]) for own in tokens])))  # D_0
    xs = [(start / own) ** bend / bend for own in tokens]
    falls = np.array([x[-1] for x in xs]) - (start / ends) ** bend / bend  # to the end, per unit of a
    x, y = (np.concatenate([one - one.mean() for one in part]) for part in (xs, losses))
    square, freedom = float(x @ x), max(0, len(x) - len(xs) - 1)
    usual, doubt = SLOPE * level, SLOPE_ERROR * level
    seen = float(x @ y) / square if square else usual
    rest = float(((y - seen * x) ** 2).sum()) + NOISE_POINTS * (NOISE * level) ** 2
    noise = rest / (freedom + NOISE_POINTS)
    precision = square / noise + 1 / doubt**2
    slope = (seen * square / noise + usual / doubt**2) / precision
    slope = min(max(slope, 0.0), _steepest(tokens, losses, ends, falls))
    last = np.array([own.mean() + slope * (one[-1] - one.mean()) for own, one in zip(losses, xs, strict=True)])
    reach = falls + np.array([one.mean() - one[-1] for one in xs])
    own_errors = np.diag(noise / np.array([len(one) for one in xs]))
    covariance = own_errors + (1 / precision + (CHANGE * slope) ** 2) * np.outer(reach, reach)
    unusual = (seen - usual) ** 2 / (doubt**2 + noise / square) if square else 0.0
    weight = -((freedom + NOISE_POINTS) * math.log(rest) + unusual) / 2
    return _Fit(last - slope * falls, covariance, slope, weight)


def _steepest(tokens: Sequence[Floats], losses: Sequence[Floats], ends: Floats, falls: Floats) -> float:
    """The slope with which an entrant would end at L (D / D_end)^BETA: the scaling law, if nothing but it were left."""
    lasts = np.array([own[-1] for own in tokens])
    most = np.array([abs(float(own[-1])) for own in losses]) * (1 - (lasts / ends) ** BETA)
    return float(min([math.inf, *(most[falls > 0] / falls[falls > 0])]))


def _with_prior(seen: Extrapolation, expected: Floats) -> tuple[Floats, Floats]:
    """The losses to be expected and their covariance, given the differences that the formula expects."""
    count = len(expected)
    error = FORMULA_ERROR * max(1e-9, float(np.abs(seen.losses).mean()))
    # The level of all together is not known before: only differences from the mean are.
    prior = (np.eye(count) - 1 / count) / error**2
    evidence = np.linalg.inv(seen.covariance)
    covariance = np.linalg.inv(prior + evidence)
    return covariance @ (prior @ (expected - expected.mean()) + evidence @ seen.losses), covariance
