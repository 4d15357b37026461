"""All pairs of options in few combinations (a greedy covering array that leaves out what is illegal)."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

Combination = dict[str, Any]


def pairs_of(combination: Combination) -> set[tuple[str, str, str, str]]:
    names = sorted(combination)
    return {(a, str(combination[a]), b, str(combination[b])) for a, b in itertools.combinations(names, 2)}


def cover(factors: dict[str, list[Any]], legal: Callable[[Combination], bool], seed: int = 0) -> list[Combination]:
    """Combinations such that every pair of options that occurs in some legal combination occurs in one of them."""
    import random

    pick = random.Random(seed)
    wanted: set[tuple[str, str, str, str]] = set()
    values = {(a, str(v)): v for a, options in factors.items() for v in options}
    for a, b in itertools.combinations(sorted(factors), 2):
        wanted |= {(a, str(x), b, str(y)) for x in factors[a] for y in factors[b]}
    chosen: list[Combination] = []
    impossible: set[tuple[str, str, str, str]] = set()
    while wanted - impossible:
        a, x, b, y = min(wanted - impossible)
        best: Combination | None = None
        gain = 0
        for _ in range(200):
            trial = {name: pick.choice(options) for name, options in factors.items()}
            trial |= {a: values[a, x], b: values[b, y]}
            new = len(pairs_of(trial) & wanted)
            if new > gain and legal(trial):
                best, gain = trial, new
        if best is None:
            impossible.add((a, x, b, y))
        else:
            chosen.append(best)
            wanted -= pairs_of(best)
    return chosen
