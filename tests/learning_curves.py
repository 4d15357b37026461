"""Learning curves that are made up: entrants of a race whose losses at the end are known."""

from __future__ import annotations

import numpy as np

from weft.training.planning.scaling import expected_loss
from weft.training.racing.standing import Curve

UNIQUE = 1e8
SHARES = {2: (0.015, 0.03, 0.045, 0.06), 3: (0.0125, 0.025, 0.0375, 0.05, 0.0625, 0.075, 0.0875, 0.1)}


def made_up_race(rng: np.random.Generator, law: str, noise: float) -> tuple[list[Curve], np.ndarray]:
    """(curves as a race sees them, losses at the end) of two to four sizes that the formula finds about as good.

    Losses fall by a power of the tokens or in a line over their logarithm, with a faster fall in the first steps, a
    last fall with the learning rate, and noise. The exponents are not those of the formula.
    """
    count, total, share = rng.integers(2, 5), rng.uniform(0.5, 1.5), rng.uniform(0.2, 0.6)
    least, tokens = 1e5 * 10 ** rng.uniform(0, 1), 10 ** rng.uniform(5.5, 7)
    weights = least * np.array([1, 2.2, 4.5, 9])[:count] * rng.uniform(0.8, 1.25, count)
    ends = tokens * (least / weights) ** rng.uniform(0.6, 1.1)
    alpha, entropy, beta, slope = rng.uniform((0.2, 0.5, 0.12, 0.15), (0.45, 1.5, 0.4, 0.35))
    early, steps, landing = rng.uniform((0.5, 5, 0), (3, 25, 0.15))

    def loss(place: int, read: float) -> float:
        power = (1 - share) * total * (tokens / read) ** beta
        by_size = entropy + total * share * (least / weights[place]) ** alpha
        start = early * np.exp(-read / (1.6 * np.sqrt(ends[place])) / steps)
        down = landing * max(0.0, 2 * read / ends[place] - 1)
        return by_size + (power if law == "power" else slope * np.log(tokens / read)) + start - down

    expected = np.array([expected_loss(*pair, UNIQUE) for pair in zip(weights, ends, strict=True)])
    places = [place for place in np.argsort(expected) if expected[place] <= 1.06 * expected.min()]
    curves = []
    for place in places:
        reads = [part * ends[place] for part in SHARES[min(3, max(2, len(places)))]]
        points = [(read, loss(place, read) + rng.normal(0, noise)) for read in reads]
        curves.append(Curve(points, ends[place], expected[place]))
    return curves, np.array([loss(place, ends[place]) for place in places])
