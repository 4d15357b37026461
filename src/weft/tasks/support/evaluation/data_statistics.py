"""What the data of a training are like: how many examples of which length and class, and which of the held-out ones
were learned from too. A score on such examples says what was remembered, not what was learned.
"""

from __future__ import annotations

import time
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from weft.tasks.support.splits.split import Split

SECONDS = 2.0  # for comparing the two parts
FLAGGED = 0.01  # the share of duplicates from which on they are told of
EXAMPLES = 3
CLASSES = 12  # classes that are counted one by one
BINS = 12


@dataclass(frozen=True)
class Lengths:
    """Lengths of examples in `unit`: least, median, 95th percentile, most; and how many fall between `edges`."""

    unit: str
    least: int
    median: float
    most_usual: float
    most: int
    edges: tuple[float, ...]
    counts: tuple[int, ...]

    @classmethod
    def of(cls, unit: str, lengths: Sequence[int], edges: NDArray[np.float64]) -> Lengths:
        """From the length of each example."""
        values = np.asarray(lengths)
        median, high = np.quantile(values, (0.5, 0.95))
        counts = np.histogram(np.clip(values, edges[0], edges[-1]), edges)[0]
        ends = (int(values.min()), float(median), float(high), int(values.max()))
        return cls(unit, *ends, tuple(edges.tolist()), tuple(counts.tolist()))


@dataclass(frozen=True)
class PartStatistics:
    """One part of the data: examples, tokens, lengths, and the number of each class, the most frequent first."""

    examples: int
    tokens: int
    lengths: Lengths | None
    classes: dict[str, int]


@dataclass(frozen=True)
class Duplicates:
    """What is held out and learned from too: `found` of `held` that were compared with `learned`.

    `what` they are: examples, or paragraphs of a text; `examples` are some of them; `complete`: all were compared.
    """

    found: int
    held: int
    learned: int
    examples: tuple[str, ...]
    complete: bool
    what: str = "examples"

    @property
    def share(self) -> float:
        return self.found / max(1, self.held)

    @property
    def flagged(self) -> bool:
        """Whether there are so many that scores mean less than they say."""
        return self.share > FLAGGED

    def describe(self) -> str:
        """In one sentence."""
        of = "" if self.complete else f" (of {self.learned:,} that there was time to compare with)"
        if not self.held:
            return f"the held-out part has no {self.what} that could be compared with those of training"
        if not self.found:
            return f"none of {self.held:,} held-out {self.what} is among those of training{of}"
        share = f"{self.found:,} of {self.held:,} held-out {self.what} ({self.share:.1%})"
        told = f"{share} are among those of training{of}"
        if not self.flagged:
            return told
        return f"the data leak: {told}; scores on them show what was remembered: remove them from one of the parts"


@dataclass(frozen=True)
class DataStatistics:
    """Both parts of the data, and what they have in common."""

    train: PartStatistics
    held_out: PartStatistics
    duplicates: Duplicates


def data_statistics(
    train: Split, held_out: Split, classes: Sequence[str] | None = None, seconds: float = SECONDS
) -> DataStatistics:
    """Of the two parts; duplicates are looked for during `seconds` at most."""
    lengths = [part.example_lengths() for part in (train, held_out)]
    most = max((max(found[1], default=0) for found in lengths if found is not None), default=0)
    edges = np.unique(np.rint(np.linspace(0, most + 1, BINS + 1)))
    learned, held = (
        PartStatistics(
            len(part),
            part.tokens,
            None if found is None or not len(found[1]) else Lengths.of(*found, edges),
            _count_classes(part.class_numbers(), classes),
        )
        for part, found in zip((train, held_out), lengths, strict=True)
    )
    return DataStatistics(learned, held, find_duplicates(train, held_out, seconds))


def _count_classes(numbers: NDArray[np.int64] | None, classes: Sequence[str] | None) -> dict[str, int]:
    if numbers is None or not classes:
        return {}
    counts = np.bincount(numbers[numbers >= 0], minlength=len(classes))
    order = np.argsort(-counts, kind="stable")
    named = {classes[number]: int(counts[number]) for number in order[:CLASSES]}
    rest = order[CLASSES:]
    return named if not len(rest) else {**named, f"{len(rest):,} others": int(counts[rest].sum())}


def find_duplicates(train: Split, held_out: Split, seconds: float = SECONDS) -> Duplicates:
    """Look for held-out examples among the training examples; as many as there is time for, half of it for each."""
    began = time.perf_counter()
    held: dict[Hashable, list[str]] = {}
    complete = True
    for identity, title in held_out.identities():
        held.setdefault(identity, []).append(title)
        if time.perf_counter() - began > seconds / 2:
            complete = False
            break
    total = sum(map(len, held.values()))
    found: list[str] = []
    learned = 0
    for identity, _ in train.identities() if held else ():
        learned += 1
        if identity in held:
            found += held.pop(identity)
        if time.perf_counter() - began > seconds:
            complete = False
            break
    return Duplicates(len(found), total, learned, tuple(found[:EXAMPLES]), complete, held_out.identified)
