"""How a race of sizes is run: how many take part, and how much of the time each of them is given.

Successive halving (Jamieson and Talwalkar 2016): at each rung the better half goes on.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

ENTRANTS = ((2.0, 2), (5.0, 3), (20.0, 4))  # from so many minutes on, so many sizes at most
RUNGS = {2: (0.06,), 3: (0.05, 0.1), 4: (0.05, 0.1)}  # shares of an entrant's steps at the end of each rung
LOOKS = 4  # at the held-out loss per rung
LEAST_STEPS = 8  # in the first rung: fewer tell nothing
LOOK_SHARE = 1 / 3  # of an evaluation's tokens are taken by a look
MOST_SHARE = 0.35  # of the time: a race that takes longer, on a machine that became slow, is decided by what is known


def most_entrants(minutes: float) -> int:
    """The number of sizes that may race: 1, which is no race, below two minutes."""
    return max([1, *(count for least, count in ENTRANTS if minutes >= least)])


def enough_steps(steps: Sequence[int]) -> bool:
    """Whether trainings that would have so many steps, if none raced, can race."""
    count = len(steps)
    return count == 1 or (1 - losers_share(count)) * min(steps) * RUNGS[count][0] >= LEAST_STEPS


def race_steps(entrants: int, steps: int) -> int:
    """The steps that a training of `steps` takes in its race, at most."""
    return 0 if entrants == 1 else math.ceil(RUNGS[entrants][-1] * steps)


def survivors(entrants: int) -> int:
    """The better half of a rung's entrants goes on; of three, two."""
    return -(-entrants // 2)


def losers_share(entrants: int) -> float:
    """The share of the time that all but the winner use, evaluations included, if no rung is decided early."""
    if entrants == 1:
        return 0.0
    rungs = RUNGS[entrants]
    counts = [entrants]
    while len(counts) <= len(rungs):
        counts.append(survivors(counts[-1]) if len(counts) < len(rungs) else 1)
    lost = sum((count - after) * share for (count, after), share in zip(pairwise(counts), rungs, strict=True))
    return 1.15 * lost
