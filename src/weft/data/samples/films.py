"""Films: a catalog as a key-value store. Wishes are queries, a film's attributes its key, what is asked for its value.

Attributes and wishes lie between -1 (none at all, not wanted) and 1, so that q^T k adds up where they agree.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from weft.data.readers.files import DataError
from weft.data.samples.sample_definition import (
    ReferenceScore,
    Sample,
    numpy_generator,
    python_generator,
    validation_size,
    word_list,
)
from weft.data.samples.sequences import SampleSequences

ATTRIBUTES = ("romance", "action", "comedy", "suspense", "music")
FACTS = ("minutes", "rating", "awards")
FIRST = word_list("Silent Crimson Last Velvet Hidden Golden Broken Distant Secret Winter Burning Paper Second Lonely")
SECOND = word_list("Harbor Letter Garden Train Summer Voyage Mirror Island Dance Circus Spy Orchid Storm Waltz")
HALLS = ("hall 1", "hall 2", "hall 3", "hall 4")
FILMS_LISTED = 8  # films per example
MARGIN = 0.3  # by which the best film's score exceeds the second's


@dataclass(frozen=True)
class FilmCatalog:
    """Names of films, keys [N, attributes] in -1 .. 1, and values [N, facts]: minutes, rating, awards."""

    names: tuple[str, ...]
    keys: NDArray[np.float64]
    values: NDArray[np.float64]
    attributes: tuple[str, ...] = ATTRIBUTES
    facts: tuple[str, ...] = FACTS


def film_catalog(count: int = 8, seed: int = 0) -> FilmCatalog:
    """A catalog of `count` different films, generated from the seed."""
    most = len(FIRST) * len(SECOND)
    if not 1 <= count <= most:
        raise DataError(f"a catalog of {count} films: choose 1 to {most}")
    choose, random = python_generator(seed, "films", "names"), numpy_generator(seed, "films", "catalog")
    names = choose.sample([f"{first} {second}" for first in FIRST for second in SECOND], count)
    keys = random.integers(-10, 11, (count, len(ATTRIBUTES))) / 10
    facts = random.integers(80, 181, count), random.integers(40, 91, count) / 10, random.integers(0, 8, count)
    return FilmCatalog(tuple(names), keys, np.stack(facts, 1).astype(np.float64))


def films(seed: int, size: int) -> Sample[SampleSequences]:
    """A wish and eight films, each with the hall that it runs in; the class is the hall of the film that fits best.

    Vectors of 10 numbers: five attributes, four that mark the hall, and a last one that marks the wish, which comes
    first. The films are a set: their order says nothing.
    """
    random = numpy_generator(seed, "films")
    drawn = [_program(random) for _ in range(size + validation_size(size))]
    values, labels = tuple(value for value, _ in drawn), np.array([label for _, label in drawn])
    parts = [SampleSequences(values[a:b], labels[a:b], ordered=False) for a, b in ((0, size), (size, len(drawn)))]
    best = ReferenceScore("accuracy", 1.0, f"by construction: the best film leads by {MARGIN} or more")
    without = ReferenceScore(
        "accuracy", _commonest_share(), "without attributes all films are alike: the hall that most of them run in"
    )
    return Sample("films", "sequences", parts[0], parts[1], best, without, HALLS)


def _program(random: np.random.Generator) -> tuple[NDArray[np.float32], int]:
    """([1 + films, 10], number of the hall): drawn again until one film is clearly the best."""
    width = len(ATTRIBUTES)
    while True:
        wish, keys = random.uniform(-1, 1, width), random.uniform(-1, 1, (FILMS_LISTED, width))
        scores = keys @ wish
        order = np.argsort(scores)
        if scores[order[-1]] - scores[order[-2]] >= MARGIN:
            break
    halls = random.integers(0, len(HALLS), FILMS_LISTED)
    values = np.zeros((1 + FILMS_LISTED, width + len(HALLS) + 1), dtype=np.float32)
    values[0, :width], values[0, -1] = wish, 1
    values[1:, :width] = keys
    values[np.arange(1, 1 + FILMS_LISTED), width + halls] = 1
    return values, int(halls[order[-1]])


def _commonest_share() -> float:
    """E[films in the commonest hall] / films, halls drawn independently and evenly."""
    total = 0.0
    for counts in _counts(FILMS_LISTED, len(HALLS)):
        ways = math.factorial(FILMS_LISTED) // math.prod(map(math.factorial, counts))
        total += ways / len(HALLS) ** FILMS_LISTED * max(counts) / FILMS_LISTED
    return total


def _counts(films: int, halls: int) -> Iterator[tuple[int, ...]]:
    """All ways to have so many films in so many halls."""
    if halls == 1:
        yield (films,)
        return
    for first in range(films + 1):
        for rest in _counts(films - first, halls - 1):
            yield (first, *rest)
