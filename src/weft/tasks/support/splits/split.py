"""Splits: examples that are learned from or held out, in batches whose order follows from a seed."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from weft.data.batching import shuffled_order
from weft.models.build import AnySpec


@dataclass(frozen=True)
class Batch:
    """What the model is called with, by name; labels; how many answers they hold; how many tokens it costs."""

    inputs: dict[str, Any]
    labels: Tensor
    count: int
    tokens: int

    def to(self, device: torch.device) -> Batch:
        """The same on another device."""
        if self.labels.device == device:
            return self
        moved = {name: x.to(device) if isinstance(x, Tensor) else x for name, x in self.inputs.items()}
        return replace(self, inputs=moved, labels=self.labels.to(device))


class Split(ABC):
    """Examples to learn from, or held out, in batches whose order follows from the seed."""

    identified: ClassVar[str] = "examples"  # what `identities` are of

    @abstractmethod
    def __len__(self) -> int:
        """How many examples there are."""

    @property
    @abstractmethod
    def tokens(self) -> int:
        """How many tokens one pass costs, about; images and series count patches."""

    @property
    def least(self) -> int:
        """Tokens of the smallest batch there is, where all examples are as long."""
        return 1

    def cut(self, length: int) -> Split:
        """The same for a model that takes at most `length` tokens."""
        return self

    def fit(self, spec: AnySpec) -> Split:
        """The same for a model of this spec."""
        length = spec.declares().length
        return self if length is None else self.cut(length)

    def pick(self, numbers: Sequence[int]) -> Split:
        """The same with these examples alone."""
        return PickedSplit(self, tuple(numbers))

    def limit(self, count: int) -> Split:
        """At most `count` examples, evenly spread; those of a text or a series are its first."""
        if count >= len(self):
            return self
        return self.pick([number * len(self) // count for number in range(count)])

    def batches(self, size: int, seed: int | None, epoch: int = 0) -> Sequence[Sequence[int]]:
        """Examples of each batch of about `size` tokens; without a seed in their own order. As many in every epoch."""
        order = list(range(len(self))) if seed is None else shuffled_order(len(self), seed, epoch)
        count = max(1, round(size * len(self) / max(1, self.tokens)))
        found = [order[first : first + count] for first in range(0, len(order), count)]
        return found[:-1] if seed is not None and len(found) > 1 and len(found[-1]) < count else found

    def identities(self) -> Iterator[tuple[Hashable, str]]:
        """For each example (or what `identified` says) what it is recognized by if it occurs again, and its name.

        Texts are equal whatever their case and blanks. By default the very numbers that the model is given.
        """
        for example in range(len(self)):
            inputs = self.batch([example]).inputs.values()
            yield digest(*(x.numpy() for x in inputs if isinstance(x, Tensor))), f"#{example}"

    def example_lengths(self) -> tuple[str, Sequence[int]] | None:
        """What examples are long in, such as words, and the length of each; None where all are as long."""
        return None

    def class_numbers(self) -> NDArray[np.int64] | None:
        """The numbers of all examples' classes, or of all their words' tags; None where there are none."""
        return None

    @abstractmethod
    def batch(self, examples: Sequence[int], seed: int | None = None, epoch: int = 0) -> Batch:
        """Tensors; with a seed as in training (shifted, augmented), without one as in evaluation."""


def digest(*arrays: NDArray[Any]) -> bytes:
    """A name for these very numbers, their shapes included."""
    found = hashlib.blake2b(digest_size=16)
    for array in arrays:
        found.update(str(array.shape).encode())
        found.update(np.ascontiguousarray(array).tobytes())
    return found.digest()


def same_text(text: str) -> str:
    """A text as it is compared with others: whatever its case and blanks."""
    return " ".join(text.lower().split())


@dataclass(frozen=True)
class PickedSplit(Split):
    """Some examples of another split."""

    whole: Split
    numbers: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.numbers)

    @property
    def tokens(self) -> int:
        """The same share of the tokens as of the examples."""
        return max(1, round(self.whole.tokens * len(self) / max(1, len(self.whole))))

    def cut(self, length: int) -> PickedSplit:
        """The same for a model that takes at most `length` tokens."""
        return replace(self, whole=self.whole.cut(length))

    def batch(self, examples: Sequence[int], seed: int | None = None, epoch: int = 0) -> Batch:
        """Those of the other split."""
        return self.whole.batch([self.numbers[example] for example in examples], seed, epoch)
