"""Windows over a series: which rows are learned from and evaluated on, and histories with what follows them.

N rows, C columns. Each column is scaled by its training rows; each window again by its own history, reversibly.
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BeforeValidator, PositiveFloat, PositiveInt
from torch import Tensor

from weft.data.batching import shuffled_order
from weft.data.readers.files import DataError
from weft.data.readers.series import TimeSeries
from weft.data.samples import Sample
from weft.foundation.spec import Spec
from weft.tasks.support.evaluation.baselines import RidgeForecast, naive_forecast
from weft.tasks.task import Batch, Split

Doubles = NDArray[np.float64]
Channels = Literal["independent", "joint"]
# Of a column's deviation in training; a history that stands still is not blown up further.
LEAST_SPREAD = 0.01
ROWS = 4096  # windows that simple methods forecast at once


def _as_rows(value: Any) -> Any:
    """`8640/2880/2880` as the command line writes it."""
    if isinstance(value, str):
        value = value.split("/")
    if isinstance(value, (list, tuple)) and len(value) not in (2, 3):
        raise ValueError("a split is rows/rows or rows/rows/rows, such as 8640/2880/2880: train, validation and test")
    return value


SplitRows = Annotated[tuple[PositiveInt, ...], BeforeValidator(_as_rows)]


class SeriesFacts(Spec):
    """What was learned of the training series: its columns and their scales, how it is cut, and how to know it again.

    `borders` are the rows where training, validation and (with a split in three) test end. `band`: what the trained
    model's bands are multiplied by, so that they hold what they promise.
    """

    columns: tuple[str, ...]
    mean: tuple[float, ...]
    deviation: tuple[float, ...]
    context: PositiveInt
    patch: PositiveInt
    borders: tuple[PositiveInt, ...]
    digest: str
    seed: int = 0
    band: PositiveFloat = 1.0

    @classmethod
    def learn(cls, series: TimeSeries, borders: tuple[int, ...], context: int, patch: int, seed: int) -> SeriesFacts:
        """From the rows before the first border."""
        rows = series.values[: borders[0]]
        scales = {"mean": rows.mean(axis=0).tolist(), "deviation": deviations(rows).tolist()}
        how = {"context": context, "patch": patch, "borders": borders, "seed": seed}
        return cls(columns=series.names, digest=digest(series.values), **scales, **how)

    def elsewhere(self, series: TimeSeries, borders: tuple[int, ...], seed: int) -> SeriesFacts:
        """The same scales for another series of the same columns."""
        if series.names != self.columns:
            raise DataError(
                f"columns {', '.join(series.names)[:80]}, but the run that is trained on learned "
                f"{', '.join(self.columns)[:80]}: give the same columns"
            )
        return self.replace(borders=borders, digest=digest(series.values), seed=seed, band=1.0)

    def scaled(self, values: Doubles) -> Doubles:
        """Columns in units of their training rows' deviation, around their mean."""
        return (values - np.array(self.mean)) / np.array(self.deviation)

    def unscaled(self, values: Doubles) -> Doubles:
        """The inverse of `scaled`."""
        return values * np.array(self.deviation) + np.array(self.mean)


def digest(values: Doubles) -> str:
    """A name for these very numbers, so that a series is known again wherever its file lies."""
    return hashlib.sha256(np.ascontiguousarray(values).tobytes()).hexdigest()[:32]


def deviations(rows: Doubles) -> Doubles:
    """Of each column; 1 for one that stands still."""
    found = rows.std(axis=0)
    return np.where(found > 0, found, 1.0)


def window_scale(history: Tensor) -> tuple[Tensor, Tensor]:
    """(last value, deviation of the history), each [B, 1, C]: what a window is centered on and divided by."""
    return history[:, -1:], (history.var(1, keepdim=True, unbiased=False) + LEAST_SPREAD**2).sqrt()


@dataclass(frozen=True)
class WindowSplit(Split):
    """All windows whose `horizon` targets lie in rows first .. end of `values` [N, C]; histories may begin before.

    Channels that are independent make each column of a window an example of its own. `known`: rows that a simple
    method may learn from, where they are at hand. `part`: which part of a series that training has seen this is.
    """

    identified: ClassVar[str] = "windows"
    values: Tensor
    first: int
    end: int
    context: int
    horizon: int
    patch: int
    channels: Channels = "independent"
    known: int = 0
    part: str = ""

    @property
    def windows(self) -> int:
        """How many places there are to forecast from."""
        return self.end - self.first - self.horizon + 1

    @property
    def columns(self) -> int:
        return self.values.shape[1]

    def __len__(self) -> int:
        return self.windows * (self.columns if self.channels == "independent" else 1)

    @property
    def tokens(self) -> int:
        """Patches of all histories."""
        return len(self) * (self.context // self.patch)

    def cut(self, length: int) -> WindowSplit:
        """Histories of at most `length` patches."""
        return replace(self, context=min(self.context, length * self.patch))

    def limit(self, count: int) -> WindowSplit:
        """The first `count` windows."""
        return replace(self, end=min(self.end, self.first + self.horizon + count - 1))

    def batches(self, size: int, seed: int | None, epoch: int = 0) -> Sequence[Sequence[int]]:
        """Windows in random order; without a seed every batch is spread evenly over the time."""
        rows = max(1, size // (self.context // self.patch))
        if seed is None:
            count = -(-len(self) // rows)
            return [range(first, len(self), count) for first in range(count)]
        order = shuffled_order(len(self), seed, epoch)
        found = [order[first : first + rows] for first in range(0, len(order), rows)]
        return found[:-1] if len(found) > 1 and len(found[-1]) < rows else found

    def batch(self, examples: Sequence[int], seed: int | None = None, epoch: int = 0) -> Batch:
        """Histories [B, context, C] and targets [B, horizon, C]; C is 1 where channels are independent."""
        chosen = torch.as_tensor(list(examples))
        steps = torch.arange(self.context + self.horizon) - self.context
        inputs: dict[str, Any] = {}
        if self.channels == "independent":
            place, column = chosen // self.columns, chosen % self.columns
            rows = self.values[self.first + place[:, None] + steps, column[:, None]][..., None]
            inputs["column"] = column
        else:
            rows = self.values[self.first + chosen[:, None] + steps]
        inputs["history"], labels = rows[:, : self.context], rows[:, self.context :]
        return Batch(inputs, labels, labels.numel(), len(chosen) * (self.context // self.patch))

    def identities(self) -> Iterator[tuple[Hashable, str]]:
        """The rows of each window, history and what follows."""
        rows = self.values.numpy()
        for place in range(self.windows):
            first = self.first + place
            title = f"rows {first - self.context + 1:,} to {first + self.horizon:,}"
            yield rows[first - self.context : first + self.horizon].tobytes(), title

    def expect_windows(self, what: str) -> WindowSplit:
        """Itself, if there is at least one window."""
        if self.windows < 1 or self.first < self.context:
            raise DataError(
                f"{what} has no window of {self.context} rows of history and {self.horizon} to forecast: give a longer "
                "series, or smaller --set data.context=... data.horizon=..."
            )
        return self


def borders_of(rows: int, horizon: int, split: Sequence[int] | None, held_out: float) -> tuple[int, ...]:
    """Rows where training, validation and perhaps test end: by the split, or with the last share held out."""
    if split is not None:
        if sum(split) > rows:
            cut = "/".join(map(str, split))
            raise DataError(f"the series has {rows:,} rows, but data.split={cut} needs {sum(split):,}: split fewer")
        return tuple(int(border) for border in np.cumsum(split))
    return rows - max(horizon, round(rows * held_out)), rows


def simple_errors(split: WindowSplit, known: int = 0, train: WindowSplit | None = None) -> dict[str, float]:
    """MSE over all windows: of the last value (naive), and of ridge regression where `known` rows teach it."""
    values = split.values.double().numpy()
    rows = (values if train is None else train.values.double().numpy())[:known]
    methods: dict[str, Any] = {"naive": lambda history: naive_forecast(history, split.horizon)}
    if len(rows) >= split.context + split.horizon:
        methods["ridge"] = RidgeForecast.fit(rows, split.context, split.horizon).predict
    slid = np.lib.stride_tricks.sliding_window_view(
        values[split.first - split.context : split.end], split.context + split.horizon, axis=0
    )
    found = dict.fromkeys(methods, 0.0)
    for start in range(0, len(slid), ROWS):
        windows = slid[start : start + ROWS].transpose(0, 2, 1)
        history, truth = windows[:, : split.context], windows[:, split.context :]
        for name, method in methods.items():
            found[name] += float(np.square(method(history) - truth).sum())
    return {name: total / (len(slid) * split.horizon * split.columns) for name, total in found.items()}


def joined(found: Sample[Any]) -> tuple[TimeSeries, tuple[int, ...]]:
    """A sample's two splits as one series, and where each ends."""
    both = [found.train.values, found.validation.values]
    values = np.concatenate(both)
    return TimeSeries(found.train.columns, None, values), (len(both[0]), len(values))
