"""Errors of forecasts, summed over stretches of time: neighboring windows share most of their rows, so a stretch of as
many windows as the horizon is long counts as one example (block bootstrap, Kuensch 1989).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from weft.tasks.support.evaluation.example_scores import Report, mean_statistic
from weft.tasks.support.evaluation.resampling import Statistic
from weft.tasks.support.forecast_bands import Forecast
from weft.tasks.support.splits.series_windows import WindowSplit

Doubles = NDArray[np.float64]


@dataclass(frozen=True)
class ForecastErrors:
    """Sums over each stretch: squared errors of each column [N, C], absolute ones, values within the band, values."""

    squares: Doubles
    absolute: Doubles
    within: Doubles
    counts: Doubles
    banded: bool

    def statistics(self) -> dict[str, Statistic]:
        """MSE, MAE, and coverage where there is a band."""
        found = {
            "mse": mean_statistic(self.squares.sum(1), self.counts),
            "mae": mean_statistic(self.absolute, self.counts),
        }
        return {**found, "coverage": mean_statistic(self.within, self.counts)} if self.banded else found


def forecast_errors(
    forecast: Callable[[nn.Module, Tensor], Forecast],
    module: nn.Module,
    split: WindowSplit,
    size: int,
    report: Report | None = None,
) -> ForecastErrors:
    """Forecast all windows of a split, in batches of about `size` tokens."""
    device = next(module.parameters()).device
    blocks = -(-split.windows // split.horizon)
    squares = np.zeros((blocks, split.columns))
    sums = np.zeros((blocks, 3))
    banded, done = False, 0
    for examples in split.batches(size, None):
        batch = split.batch(examples).to(device)
        found, truth = forecast(module, batch.inputs["history"]), batch.labels
        error = (found.point - truth).double()
        column = batch.inputs.get("column")
        window = np.array(examples) // (1 if column is None else split.columns)
        block = window // split.horizon
        by_column = error.square().sum(1).cpu().numpy()
        if column is None:
            np.add.at(squares, block, by_column)
        else:
            np.add.at(squares, (block, column.cpu().numpy()), by_column[:, 0])
        inside = torch.zeros_like(error)
        if found.low is not None and found.high is not None:
            banded = True
            inside = ((found.low <= truth) & (truth <= found.high)).double()
        each = [error.abs(), inside, torch.ones_like(error)]
        np.add.at(sums, block, np.stack([one.flatten(1).sum(1).cpu().numpy() for one in each], -1))
        done += len(examples)
        if report is not None:
            report(done / len(split))
    return ForecastErrors(squares, sums[:, 0], sums[:, 1], sums[:, 2], banded)
