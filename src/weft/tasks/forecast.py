"""Task forecast: the next numbers of a series. A decoder over patches; its last token predicts the whole horizon.

Each window is centered on its last value and divided by the deviation of its history, z = (x - x_T) / s, and the
forecast is brought back: so a model that says 0 says "as now". Loss: - log p(x) of a Student-t or Gaussian in nats per
number, or the squared error of a point forecast; errors are in units of each column's deviation in training.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from pydantic import PositiveInt
from torch import Tensor, nn

from weft.data.readers.files import DataError
from weft.data.readers.series import TimeSeries, read_series
from weft.data.samples import ReferenceScore, Sample, brownian_best
from weft.data.tokenizers.tokenizer import Tokenizer
from weft.foundation.numerics import widen
from weft.foundation.spec import Tree
from weft.models.build import AnySpec
from weft.models.part_specs import AttentionSpec, ClassicSpec, ConvolutionSpec, InitializationSpec, NoNormSpec
from weft.models.position_specs import NoPositionsSpec, RotarySpec
from weft.models.series import SeriesSpec
from weft.parts.outputs import ForecastHead
from weft.tasks.support.evaluation.example_scores import ExampleScores, Report
from weft.tasks.support.evaluation.forecast_errors import forecast_errors
from weft.tasks.support.forecast_bands import BAND, Forecast, fit_band, half_band, predict_patches
from weft.tasks.support.losses import auxiliary_loss, mean_loss
from weft.tasks.support.splits.series_windows import (
    Channels,
    Doubles,
    SeriesFacts,
    SplitRows,
    WindowSplit,
    borders_of,
    digest,
    joined,
    simple_errors,
    window_scale,
)
from weft.tasks.task import (
    Answer,
    Batch,
    DataSpec,
    GenerationOptions,
    Loss,
    Names,
    PreparedData,
    Recipe,
    Size,
    Split,
    Task,
    find_sample,
)

CONTEXT, PATCH = 336, 24
DEPTH = 0.2  # the share of rows that leave the last block out in training
USEFUL_WINDOWS = 100_000  # windows, however often each is seen; fewer leave a model of a short series untrained


class ForecastOptions(DataSpec):
    """`columns` to forecast (by default all that are numeric), `horizon` steps ahead from `context` steps of history.

    `split`: rows of training, validation and test, such as 8640/2880/2880; without it the last rows are held out, or
    `validation` names another file. `channels`: independent (each column is a series of its own, all share the
    weights) or joint (one token holds all columns). `patch`: steps per token.
    """

    columns: Names = ()
    horizon: PositiveInt = 24
    context: PositiveInt | None = None
    split: SplitRows | None = None
    channels: Channels = "independent"
    patch: PositiveInt | None = None


class ForecastTask(Task):
    """A decoder over patches of numbers learns what follows a history."""

    name = "forecast"
    families = ("series",)
    metric = "mse"
    picture = "forecast"
    example = "series.csv"
    Options = ForecastOptions
    formats = "a table (.csv, .tsv, plain or .gz) of numeric columns, one row per time, with or without a time column"
    auto = "a series decoder with one convolution layer before attention, and no norms (hybrid)"
    evaluates_on_tail = True
    examined = ("band",)

    options: ForecastOptions

    def __init__(self, options: ForecastOptions, known: SeriesFacts) -> None:
        self.options, self.known = options, known

    # --- data --------------------------------------------------------------------------------------------------------

    @classmethod
    def prepare(
        cls, paths: Sequence[str], options: ForecastOptions, seed: int, cache: Path, known: ForecastTask | None = None
    ) -> PreparedData:
        """Read a series; learn the scale of its columns from the rows that are not held out."""
        found = find_sample(cls.name, paths, seed)
        if found is not None:
            series, borders = joined(found)
            task = cls._learn(series, options, borders, seed, known)
            train, validation = task._cut(series.values, 0), task._cut(series.values, 1)
            return PreparedData(task, train, validation, task._best(found))
        series = read_series(paths, (options.columns or None) if known is None else known.known.columns)
        if options.validation:
            if options.split is not None:
                raise DataError("data.split and data.validation both say what is held out: give one of them")
            task = cls._learn(series, options, (len(series.values),), seed, known)
            held = task._whole(list(options.validation))
            return PreparedData(task, task._cut(series.values, 0), held, notes=_notes(series))
        borders = borders_of(len(series.values), options.horizon, options.split, options.held_out)
        task = cls._learn(series, options, borders, seed, known)
        train, validation, *rest = (task._cut(series.values, number) for number in range(len(borders)))
        test = replace(rest[0], known=borders[0]) if rest else None
        return PreparedData(task, train, validation, notes=_notes(series), test=test)

    @classmethod
    def _learn(
        cls, series: TimeSeries, options: ForecastOptions, borders: tuple[int, ...], seed: int, old: ForecastTask | None
    ) -> ForecastTask:
        if borders[0] < 2:
            raise DataError(f"{max(0, borders[0])} rows to learn from: give a longer series")
        if old is not None:
            return cls(options, old.known.elsewhere(series, borders, seed))
        # Half of a short series may be history: the other half is needed to learn from.
        wanted = options.context or max(1, min(CONTEXT, (borders[0] - options.horizon) // 2))
        patch = min(options.patch or max(1, min(PATCH, wanted // 4)), wanted)
        return cls(options, SeriesFacts.learn(series, borders, wanted // patch * patch, patch, seed))

    def _split(self, values: Doubles, first: int, end: int, what: str) -> WindowSplit:
        scaled = torch.from_numpy(self.known.scaled(values).astype(np.float32))
        known, o = self.known, self.options
        split = WindowSplit(scaled, first, end, known.context, o.horizon, known.patch, o.channels)
        return split.expect_windows(what)

    def _cut(self, values: Doubles, number: int) -> WindowSplit:
        """The training, validation or test split; histories of the later ones may reach into those before."""
        borders = self.known.borders
        first = borders[number - 1] if number else self.known.context
        name = ("training", "validation", "test")[number]
        split = self._split(values, first, borders[number], f"the {name} split")
        return replace(split, part=f"{name}, rows {first + 1:,} to {borders[number]:,}")

    def _whole(self, paths: Sequence[str]) -> WindowSplit:
        series = read_series(paths, self.known.columns)
        return self._split(series.values, self.known.context, len(series.values), Path(paths[0]).name)

    def _best(self, found: Sample[Any]) -> ReferenceScore | None:
        """The sample's best score in units of the columns' deviations."""
        best = found.best
        if best is not None and found.name.startswith("brownian"):
            best = brownian_best(self.options.horizon, len(found.validation.values), len(self.known.columns))
        if best is None:
            return None
        weights = 1 / np.square(self.known.deviation)
        value, spread = best.value * weights.mean(), best.spread * math.sqrt(np.square(weights).mean())
        why = f"{best.why}; {best.value:.4g} in the columns' own units"
        return ReferenceScore(best.metric, float(value), why, float(spread))

    @classmethod
    def restore(cls, options: Any, facts: Tree, tokenizer: Tokenizer | None) -> ForecastTask:
        return cls(options, SeriesFacts(**facts))

    @property
    def sample_seed(self) -> int:
        return self.known.seed

    def facts(self) -> Tree:
        return self.known.to_tree()

    def read(self, paths: Sequence[str], cache: Path) -> Split:
        """The training series is evaluated on its last rows (test, of a split in three), any other on all windows."""
        found = find_sample(self.name, paths, self.sample_seed)
        series = read_series(paths, self.known.columns) if found is None else joined(found)[0]
        if digest(series.values) == self.known.digest and len(self.known.borders) > 1:
            return replace(self._cut(series.values, len(self.known.borders) - 1), known=self.known.borders[0])
        first = self.known.context if found is None else len(found.train.values)
        return self._split(series.values, first, len(series.values), str(paths[0]))

    # --- model -------------------------------------------------------------------------------------------------------

    def sizes(self, train: Split) -> Sequence[Size]:
        """Small ones: a series teaches little, and large models learn it by heart."""
        return (Size(64, 2),) if train.tokens < 20_000_000 else (Size(64, 2), Size(128, 3), Size(256, 4))

    def default_model(self, size: Size) -> SeriesSpec:
        """A convolution over the whole context, then attention, without norms.

        So what flows past the blocks is a linear map of the history, a regression, and attention adds what is not
        linear. Windows are scaled already; a norm would hide how large each patch is.
        """
        kernel = self.known.context // self.known.patch
        spec = SeriesSpec(
            width=size.width,
            layers=size.layers,
            mixer=(ConvolutionSpec(kernel=kernel), *(AttentionSpec(heads=size.heads),) * (size.layers - 1)),
            feedforward=ClassicSpec(hidden=size.width),
            positions=RotarySpec() if size.layers > 1 else NoPositionsSpec(),
            norm=NoNormSpec(),
            dropout=size.dropout,
            stochastic_depth=DEPTH,
            initialization=InitializationSpec(scheme="fan-in", zero_residual=True),
        )
        return self.fit(spec)

    def fit(self, spec: AnySpec) -> SeriesSpec:
        """Channels, patch and context of this data; each token predicts the whole horizon."""
        assert isinstance(spec, SeriesSpec)
        known = self.known
        return spec.replace(
            channels=len(known.columns) if self.options.channels == "joint" else 1,
            patch=known.patch,
            length=known.context // known.patch,
            ahead=-(-self.options.horizon // known.patch),
        )

    def recipe(self, size: Size, epochs: float) -> Recipe:
        """Strong dropout, averaged weights and few epochs: neighboring windows are nearly the same."""
        training = {"optimizer": "adamw", "rate": 3e-3, "schedule": "cosine", "ema": 0.99}
        known = self.known
        windows = known.borders[0] - known.context - self.options.horizon + 1
        windows *= 1 if self.options.channels == "joint" else len(known.columns)
        return Recipe(dropout=0.3, training=training, most_epochs=max(4.0, USEFUL_WINDOWS / max(1, windows)))

    def loss(self, module: nn.Module, batch: Batch, smoothing: float = 0.0) -> Loss:
        """- log p(x) per number, or its squared error, over the steps that the model predicts at once."""
        history, target = batch.inputs["history"], batch.labels
        raw, output = predict_patches(module, history)
        center, spread = window_scale(history)
        steps = min(raw.shape[1], target.shape[1])
        raw, z = raw[:, :steps], (target[:, :steps] - center) / spread
        head = cast(ForecastHead, module.head)
        if head.distribution_name == "point":
            losses = (widen(head.point(raw)) - z).square() * spread.square()
        else:
            losses = spread.log() - head.distribution(raw).log_prob(z)
        return Loss(losses.mean() * batch.count, batch.count, auxiliary_loss(output))

    # --- forecasts ---------------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def forecast(self, module: nn.Module, history: Tensor) -> Forecast:
        """History [B, S, C] in scaled units -> the horizon.

        A model that predicts fewer steps rolls on: its best guesses become history, and the variance of the last one
        is added to those that follow.
        """
        module.eval()
        head, context = cast(ForecastHead, module.head), self.known.context
        points: list[Tensor] = []
        ends: list[Tensor] = []
        before: Tensor | float = 0.0
        while sum(point.shape[1] for point in points) < self.options.horizon:
            raw, _ = predict_patches(module, history)
            center, spread = window_scale(history)
            points.append(center + spread * widen(head.point(raw)))
            if head.distribution_name != "point":
                half = (spread * half_band(head, raw)).square() + before
                ends.append(half.sqrt())
                before = half[:, -1:]
            history = torch.cat((history, points[-1].to(history.dtype)), 1)[:, -context:]
        point = torch.cat(points, 1)[:, : self.options.horizon]
        if not ends:
            return Forecast(point)
        half = self.known.band * torch.cat(ends, 1)[:, : self.options.horizon]
        return Forecast(point, point - half, point + half)

    def examine(self, module: nn.Module, validation: Split) -> bool:
        """Widen or narrow the bands so that they hold what they promise on held-out windows, where that helps."""
        assert isinstance(validation, WindowSplit)
        before, self.known = self.known.band, self.known.replace(band=1.0)
        self.known = self.known.replace(band=max(1e-3, fit_band(self.forecast, module, validation)))
        return self.known.band != before

    def measure(self, module: nn.Module, split: Split, size: int) -> dict[str, Any]:
        """Errors over all windows, the share of values within the 80 % band, and errors in each column's own units."""
        return self.score_examples(module, split, size).metrics

    def score_examples(self, module: nn.Module, split: Split, size: int, report: Report | None = None) -> ExampleScores:
        """Examples are stretches of as many windows as the horizon is long."""
        assert isinstance(split, WindowSplit)
        errors = forecast_errors(self.forecast, module, split, size, report)
        statistics = errors.statistics()
        own = np.sqrt(errors.squares.sum(0) / (split.windows * split.horizon)) * np.array(self.known.deviation)
        metrics = {
            "loss": mean_loss(self, module, split, size),
            **{name: statistic.point for name, statistic in statistics.items()},
            **({"nominal_coverage": BAND} if errors.banded else {}),
            **{f"{name}_mse": value for name, value in simple_errors(split, split.known).items()},
            "rmse_by_column": dict(zip(self.known.columns, own.tolist(), strict=True)),
            "windows": split.windows,
            "horizon": split.horizon,
            "context": split.context,
            **({"part": split.part} if split.part else {}),
        }
        means = errors.squares.sum(1) / errors.counts
        answers = [f"mse {mean:.4f}" for mean in means]

        def show(block: int) -> str:
            first = split.first + block * split.horizon
            return f"forecasts from row {first + 1:,} to {min(first + split.horizon, split.end - split.horizon + 1):,}"

        return ExampleScores(metrics, statistics, [None] * len(means), answers, -means, show)

    def references(self, train: Split, split: Split) -> dict[str, float]:
        """The errors of the last value and of ridge regression on the training rows."""
        assert isinstance(train, WindowSplit) and isinstance(split, WindowSplit)
        return simple_errors(split, train.end, train)

    def quick_references(self, facts: Tree, split: Split) -> dict[str, float]:
        """The error of the last value; of ridge regression too where the training rows are at hand."""
        assert isinstance(split, WindowSplit)
        return simple_errors(split, split.known)

    def predict(self, module: nn.Module, inputs: Sequence[Any], generation: GenerationOptions) -> list[Answer]:
        """What follows the end of each series (a .csv, or numbers [N, C]), in the columns' own units, with bands."""
        return [self._predict(module, given) for given in inputs]

    def _predict(self, module: nn.Module, given: Any) -> Answer:
        known = self.known
        rows = self._rows(given)
        # Only whole patches of a history that is shorter than the context can be read.
        length = min(known.context, len(rows) // known.patch * known.patch)
        if not length:
            raise DataError(
                f"{len(rows)} rows of history, but the model reads patches of {known.patch}: give more rows"
            )
        scaled = torch.from_numpy(known.scaled(rows[-length:]).astype(np.float32))
        joint = self.options.channels == "joint"
        history = scaled[None] if joint else scaled.T[:, :, None]
        found = self.forecast(module, history.to(next(module.parameters()).device))

        def named(values: Tensor) -> dict[str, list[float]]:
            own = known.unscaled((values[0] if joint else values[..., 0].T).double().cpu().numpy())
            return {name: own[:, place].tolist() for place, name in enumerate(known.columns)}

        ends = {"low": found.low, "high": found.high}
        shown = str(given) if isinstance(given, (str, Path)) else rows.tolist()
        return Answer(shown, named(found.point), {name: named(end) for name, end in ends.items() if end is not None})

    def _rows(self, given: Any) -> Doubles:
        if isinstance(given, (str, Path)):
            found = find_sample(self.name, [str(given)], self.sample_seed)
            return read_series([given], self.known.columns).values if found is None else found.train.values
        rows = np.asarray(given, dtype=np.float64)
        rows = rows[:, None] if rows.ndim == 1 else rows
        if rows.ndim != 2 or rows.shape[1] != len(self.known.columns):
            raise DataError(
                f"numbers of shape {'x'.join(map(str, rows.shape))}, but this model forecasts columns "
                f"{', '.join(self.known.columns)}: give [rows, {len(self.known.columns)}]"
            )
        return rows

    def preview(self, module: nn.Module, split: Split) -> str:
        """The first held-out window's first column: forecast and truth, near and far."""
        assert isinstance(split, WindowSplit)
        batch = split.batch([0]).to(next(module.parameters()).device)
        point = self.forecast(module, batch.inputs["history"]).point[0, :, 0].cpu().double().numpy()
        truth = batch.labels[0, :, 0].cpu().double().numpy()
        scale, mean = self.known.deviation[0], self.known.mean[0]
        shown = sorted({0, split.horizon // 2, split.horizon - 1})
        words = [
            f"+{step + 1} {point[step] * scale + mean:.4g} (was {truth[step] * scale + mean:.4g})" for step in shown
        ]
        return f"{self.known.columns[0]}: {', '.join(words)}"


def _notes(series: TimeSeries) -> tuple[str, ...]:
    names = ", ".join(series.left_out)
    return (f"left out, because they hold no numbers: {names}",) if names else ()
