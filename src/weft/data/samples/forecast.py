"""Forecast: seasons with noise of known size, and Brownian motion, whose best forecast is the last value."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from weft.data.samples.sample_definition import ReferenceScore, Sample, numpy_generator, validation_size
from weft.foundation.arrays import Array

HORIZON = 24
NOISE, STEP = 0.3, 1.0  # standard deviations: of the seasons' noise, of one Brownian step
PERIODS = (24.0, 12.0, 168.0)
SEASONAL_COLUMNS = ("harbour", "station", "market")


@dataclass(frozen=True)
class SampleSeries:
    """Values [T, C] of named columns, the forecast horizon, and the values without noise where they exist."""

    values: Array
    columns: tuple[str, ...]
    horizon: int = HORIZON
    expected: Array | None = None


def seasonal(seed: int, size: int) -> Sample[SampleSeries]:
    """Hourly counts at three places: daily, half-daily and weekly waves, and noise that cannot be forecast."""
    random = numpy_generator(seed, "seasonal")
    count = validation_size(size, 10 * HORIZON)
    time = np.arange(size + count)[:, None]
    expected = np.zeros((size + count, len(SEASONAL_COLUMNS)))
    for period, strength in zip(PERIODS, (1.0, 0.5, 0.6), strict=True):
        phases = random.uniform(0, 2 * math.pi, len(SEASONAL_COLUMNS))
        sizes = strength * random.uniform(0.7, 1.3, len(SEASONAL_COLUMNS))
        expected += sizes * np.sin(2 * math.pi * time / period + phases)
    expected += random.uniform(1, 4, len(SEASONAL_COLUMNS))
    values = expected + random.normal(0, NOISE, expected.shape)
    spread = NOISE**2 * math.sqrt(2 / (count * len(SEASONAL_COLUMNS)))
    best = ReferenceScore(
        "mse", NOISE**2, "variance of the noise: the waves can be known exactly, the noise not at all", spread
    )
    parts = (
        SampleSeries(values[:size], SEASONAL_COLUMNS, HORIZON, expected[:size]),
        SampleSeries(values[size:], SEASONAL_COLUMNS, HORIZON, expected[size:]),
    )
    return Sample("seasonal", "forecast", *parts, best)


def brownian(seed: int, size: int) -> Sample[SampleSeries]:
    """One-dimensional Brownian motion: independent normal steps."""
    return _motion("brownian", seed, size, ("x",))


def brownian3d(seed: int, size: int) -> Sample[SampleSeries]:
    """Brownian motion of a particle in space."""
    return _motion("brownian3d", seed, size, ("x", "y", "z"))


def _motion(name: str, seed: int, size: int, columns: tuple[str, ...]) -> Sample[SampleSeries]:
    count = validation_size(size, 10 * HORIZON)
    values = numpy_generator(seed, name).normal(0, STEP, (size + count, len(columns))).cumsum(0)
    best = brownian_best(HORIZON, count, len(columns))
    parts = (SampleSeries(values[:size], columns), SampleSeries(values[size:], columns))
    return Sample(name, "forecast", *parts, best)


def brownian_best(horizon: int, length: int, columns: int = 1) -> ReferenceScore:
    """The least mean squared error over steps 1..H of Brownian motion: step variance x (H + 1) / 2.

    Its spread over all windows of a series of `length` steps is exact except at the ends: the error is a quadratic
    form of the steps, sum_ij A_ij e_i e_j, with variance 2 sum_ij A_ij^2.
    """
    value = STEP**2 * (horizon + 1) / 2
    windows = max(length - horizon, 1)
    shared = np.arange(1, horizon + 1)
    # Number of (window, step ahead) errors that contain both step i and step i + gap.
    together = np.array([np.maximum(shared - gap, 0).sum() for gap in range(horizon)]) / (windows * horizon)
    squares = windows * (together[0] ** 2 + 2 * (together[1:] ** 2).sum())
    spread = STEP**2 * math.sqrt(2 * squares / columns)
    why = (
        f"the last value is the best forecast; its error h steps ahead is h x step variance, mean over h = 1..{horizon}"
    )
    return ReferenceScore("mse", value, why, spread)
