"""Sequences of vectors as a model takes them: strided, centered, with differences, scaled, padded into batches.

Axes: T steps (each sequence has its own number), C channels. Joints of a body are x, y, z in turn.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from weft.data.batching import shuffled_order
from weft.foundation.errors import WeftError
from weft.foundation.seeds import generator
from weft.foundation.spec import Spec
from weft.tasks.support.splits.augmentation import Floats, VerticalAxis, own_random, shake, turn_joints, warp_time
from weft.tasks.support.splits.split import digest
from weft.tasks.task import Batch, Split

SequenceAugmentation = Literal["warp", "noise", "turn"]
SEQUENCE_AUGMENTATIONS: tuple[SequenceAugmentation, ...] = get_args(SequenceAugmentation)
WARP = 0.2  # share of the time by which sequences are cut, sped up or slowed down
NOISE, STRENGTH = 0.1, 0.1  # in standard deviations; in parts of the whole
TURN = 0.3  # radians
POOL = 4  # batches whose examples are sorted by length together
FINITE = 1e-6


class Preparation(Spec):
    """How values become what the model sees, learned from training data; stored with the run.

    `stride` steps become their mean; `vertical` says that channels are joints, and which of x, y, z points up: they
    are centered on the middle of the body over the sequence and divided by `axes`; `differences` of neighboring steps
    join as more channels; last, channels have `mean` taken away and are divided by `deviation`.
    """

    stride: int = 1
    vertical: VerticalAxis | None = None
    axes: tuple[float, ...] = (1.0, 1.0, 1.0)
    differences: bool = False
    mean: tuple[float, ...] = ()
    deviation: tuple[float, ...] = ()

    @classmethod
    def learn(
        cls, values: Sequence[Floats], stride: int, vertical: VerticalAxis | None, differences: bool, scaled: bool
    ) -> Preparation:
        """From training sequences; channels that never change are left as they are."""
        plain = cls(stride=stride, vertical=vertical, differences=differences)
        ready = [plain.begin(one) for one in values]
        if vertical is not None:
            spread = np.concatenate(ready).reshape(-1, 3).std(0)
            plain = plain.replace(axes=_rounded(np.maximum(spread, FINITE)))
            ready = [plain.begin(one) for one in values]
        steps = np.concatenate([plain.end(one) for one in ready]).astype(np.float64)
        if not scaled:
            return plain
        spread = steps.std(0)
        spread = np.where(spread > FINITE * np.maximum(np.abs(steps).max(0), 1), spread, 1.0)
        return plain.replace(mean=_rounded(steps.mean(0)), deviation=_rounded(spread))

    def begin(self, values: Floats) -> Floats:
        """What comes before augmentation: gaps filled, strides averaged, joints centered."""
        if self.vertical is not None:
            values = fill_gaps(values)
        if self.stride > 1:
            values = averaged(values, self.stride)
        if self.vertical is None:
            return values
        points = values.reshape(len(values), -1, 3)
        centered = (points - points.mean((0, 1))) / np.array(self.axes, dtype=np.float32)
        return centered.reshape(values.shape).astype(np.float32)

    def end(self, values: Floats) -> Floats:
        """What comes after: differences, scaling."""
        if self.differences:
            joined = np.zeros((len(values), 2 * values.shape[1]), dtype=np.float32)
            joined[:, : values.shape[1]] = values
            joined[1:, values.shape[1] :] = values[1:] - values[:-1]
            values = joined
        if not self.mean:
            return values
        scaled = (values - np.array(self.mean, dtype=np.float32)) / np.array(self.deviation, dtype=np.float32)
        return scaled.astype(np.float32)

    def channels(self, raw: int) -> int:
        """How many numbers a step has for the model."""
        return raw * (2 if self.differences else 1)


def _rounded(values: NDArray[Any]) -> list[float]:
    return [float(f"{value:.7g}") for value in values]


def averaged(values: Floats, stride: int) -> Floats:
    """Means over runs of `stride` steps; the last run may be shorter."""
    starts = np.arange(0, len(values), stride)
    sizes = np.diff([*starts, len(values)])[:, None]
    means: Floats = (np.add.reduceat(values, starts, axis=0) / sizes).astype(np.float32)
    return means


def fill_gaps(values: Floats) -> Floats:
    """Steps where all channels are 0 (no body was seen) as a line between their neighbors."""
    seen = np.flatnonzero(values.any(axis=1))
    if len(seen) in (0, len(values)):
        return values
    steps = np.arange(len(values))
    return np.stack([np.interp(steps, seen, column[seen]) for column in values.T], 1).astype(np.float32)


def step_changes(names: tuple[str, ...], vertical: VerticalAxis | None) -> tuple[SequenceAugmentation, ...]:
    """Changes by name; auto takes all that apply."""
    if names == ("auto",):
        return SEQUENCE_AUGMENTATIONS if vertical is not None else ("warp", "noise")
    unknown = next((name for name in names if name not in (*SEQUENCE_AUGMENTATIONS, "none")), None)
    if unknown is not None:
        raise WeftError(
            f"there is no augmentation {unknown!r}: choose auto, none, or some of {','.join(SEQUENCE_AUGMENTATIONS)}"
        )
    if "turn" in names and vertical is None:
        raise WeftError("augmentation turn needs joints: say which axis points up with --set data.vertical=y")
    return tuple(change for change in SEQUENCE_AUGMENTATIONS if change in names)


@dataclass(frozen=True)
class VectorSequencesSplit(Split):
    """Sequences that have begun their preparation, with labels; longer ones than `length` keep their middle."""

    values: Sequence[Floats]
    labels: NDArray[np.int64]
    preparation: Preparation
    changes: tuple[SequenceAugmentation, ...] = ()
    length: int | None = None
    turns: float = TURN

    def __len__(self) -> int:
        return len(self.values)

    def _steps(self, example: int) -> int:
        return min(len(self.values[example]), self.length or len(self.values[example]))

    @property
    def tokens(self) -> int:
        """Steps of all sequences."""
        return sum(self._steps(example) for example in range(len(self)))

    def identities(self) -> Iterator[tuple[Hashable, str]]:
        """The values, whatever the augmentation."""
        for number, values in enumerate(self.values):
            yield digest(values), f"#{number}"

    def example_lengths(self) -> tuple[str, Sequence[int]]:
        return "steps", [len(values) for values in self.values]

    def class_numbers(self) -> NDArray[np.int64]:
        return self.labels

    def cut(self, length: int) -> VectorSequencesSplit:
        """The same for a model that takes at most `length` steps."""
        return replace(self, length=length)

    def pick(self, numbers: Sequence[int]) -> VectorSequencesSplit:
        """The same with these sequences alone."""
        return replace(self, values=[self.values[n] for n in numbers], labels=self.labels[list(numbers)])

    def batches(self, size: int, seed: int | None, epoch: int = 0) -> Sequence[Sequence[int]]:
        """Batches of about `size` steps, of similar length; random, or in their own order."""
        count = max(1, round(size * len(self) / max(1, self.tokens)))
        order = list(range(len(self))) if seed is None else shuffled_order(len(self), seed, epoch)
        if seed is None:
            return [order[first : first + count] for first in range(0, len(order), count)]
        order = order[: max(count, len(order) // count * count)]
        found = []
        for first in range(0, len(order), POOL * count):
            pool = sorted(order[first : first + POOL * count], key=self._steps)
            found += [pool[place : place + count] for place in range(0, len(pool), count)]
        mixed = torch.randperm(len(found), generator=generator(seed, "batches", epoch)).tolist()
        return [found[number] for number in mixed]

    def batch(self, examples: Sequence[int], seed: int | None = None, epoch: int = 0) -> Batch:
        """Vectors [n, T, C] with padding, and which are real; with a seed augmented."""
        rows = [self.row(int(example), seed, epoch) for example in examples]
        inputs = padded(rows)
        labels = torch.from_numpy(self.labels[np.asarray(examples, dtype=np.int64)])
        return Batch(inputs, labels, len(rows), inputs["tokens"].shape[0] * inputs["tokens"].shape[1])

    def row(self, example: int, seed: int | None = None, epoch: int = 0) -> Floats:
        """One sequence as the model sees it."""
        values = self.values[example]
        if seed is None or not self.changes:
            return self.preparation.end(middle(values, self.length))
        random = own_random(seed, epoch, example)
        if "turn" in self.changes and self.preparation.vertical is not None:
            values = turn_joints(values, self.preparation.vertical, self.turns * random.uniform(-1, 1))
        if "warp" in self.changes:
            values = warp_time(values, random, WARP)
        row = self.preparation.end(middle(values, self.length))
        return shake(row, random, NOISE, STRENGTH) if "noise" in self.changes else row


def middle(values: Floats, length: int | None) -> Floats:
    """The middle `length` steps of a longer sequence."""
    first = 0 if length is None else max(0, (len(values) - length) // 2)
    return values[first : None if length is None else first + length]


def padded(rows: Sequence[Floats]) -> dict[str, Any]:
    """Rows [T, C] of different lengths as one tensor [n, T, C]; a mask where there is padding."""
    lengths = torch.tensor([len(row) for row in rows])
    width = int(lengths.max())
    values = np.zeros((len(rows), width, rows[0].shape[1]), dtype=np.float32)
    for number, row in enumerate(rows):
        values[number, : len(row)] = row
    real = torch.arange(width) < lengths[:, None]
    inputs: dict[str, Any] = {"tokens": torch.from_numpy(values)}
    if not bool(real.all()):
        inputs["mask"] = real
    return inputs
