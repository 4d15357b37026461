"""What a built-in sample is: a training and a validation part, and the best score possible on the latter."""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from weft.data.readers.files import DataError
from weft.foundation.seeds import derive

_Split = TypeVar("_Split")
_Example = TypeVar("_Example", bound=Hashable)

LOWER_IS_BETTER = ("loss", "mse", "mae", "perplexity", "pseudo_perplexity", "bits_per_byte", "cer", "wer", "ece")
# Draws per distinct example before the sample is declared exhausted.
DRAWS_PER_EXAMPLE = 50


@dataclass(frozen=True)
class ReferenceScore:
    """A score known in advance, and why; `spread` is its standard deviation on this validation part."""

    metric: str
    value: float
    why: str
    spread: float = 0.0

    @property
    def lower_is_better(self) -> bool:
        return self.metric in LOWER_IS_BETTER

    def beaten_by(self, score: float, spreads: float = 4.0) -> bool:
        """Whether a score is better than chance allows, which means that something leaks."""
        ahead = self.value - score if self.lower_is_better else score - self.value
        return ahead > spreads * self.spread + 1e-9


@dataclass(frozen=True)
class Sample(Generic[_Split]):
    """A built-in sample. `best` bounds every model; `shortcut` bounds models that use too little of the input.

    `ordered`: whether the order of what an example is made of says anything.
    """

    name: str
    task: str
    train: _Split
    validation: _Split
    best: ReferenceScore | None
    shortcut: ReferenceScore | None = None
    classes: tuple[str, ...] = ()
    ordered: bool = True


def numpy_generator(seed: int, *names: str | int) -> np.random.Generator:
    """A numpy generator for one purpose of one sample."""
    return np.random.default_rng(derive(seed, "sample", *names))


def python_generator(seed: int, *names: str | int) -> random.Random:
    """A generator of the module `random` for one purpose of one sample."""
    return random.Random(derive(seed, "sample", *names))


def word_list(text: str) -> tuple[str, ...]:
    """The words of a text, as a tuple."""
    return tuple(text.split())


def validation_size(size: int, least: int = 1) -> int:
    """Number of validation examples: a tenth of all, but at least `least`."""
    return max(size // 9, least)


def draw_distinct(name: str, count: int, draw: Callable[[], _Example]) -> list[_Example]:
    """`count` distinct examples in the order drawn, so that the two parts share none."""
    found: dict[_Example, None] = {}
    for _ in range(DRAWS_PER_EXAMPLE * count + 1000):
        found[draw()] = None
        if len(found) == count:
            return list(found)
    raise DataError(f"sample {name} found only {len(found)} different examples of {count}: ask for a smaller size")
