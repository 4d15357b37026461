"""The picture of task forecast: history, forecast with its band, and where the last patch looks.

A series has no examples but windows: 0 is the end of the training rows, N ends N horizons earlier.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from weft.data.readers.series import read_series
from weft.figures.panels.series import ForecastPanel
from weft.foundation.errors import WeftError
from weft.inspection.pictures.inputs import LookInput, SampleExample
from weft.inspection.pictures.look_options import LookOptions
from weft.inspection.pictures.observation import Observation, watched
from weft.inspection.pictures.panels import Array, Panels, head_axis, layer_axis, to_array
from weft.inspection.pictures.task_picture import TaskPicture


@dataclass(frozen=True)
class SeriesObservation(Observation):
    """A history [T, C] in its own units, what the model says follows, with its band; `patch` steps per token."""

    columns: tuple[str, ...] = ()
    history: Array = field(default_factory=lambda: np.zeros((1, 1), np.float32))
    ahead: Array = field(default_factory=lambda: np.zeros((1, 1), np.float32))
    low: Array | None = None
    high: Array | None = None
    patch: int = 1


def observe_forecast(run: Any, given: LookInput, how: dict[str, Any]) -> Observation:
    """The history that the model read, and its answer, both in the columns' own units."""
    known = run.task.known
    seen, answer = watched(run, given, how)
    values = read_series([given.value], known.columns).values if isinstance(given.value, str) else given.value
    values = np.asarray(values, dtype=np.float64).reshape(-1, len(known.columns))
    length = min(known.context, len(values) // known.patch * known.patch)

    def table(by_name: Mapping[str, Sequence[float]]) -> Array:
        return np.array([by_name[name] for name in known.columns], dtype=np.float32).T

    patches = length // known.patch
    return SeriesObservation(
        seen,
        run.task.picture,
        given.name,
        tuple(
            f"{known.patch * (place - patches) + 1} to {known.patch * (place + 1 - patches)}"
            for place in range(patches)
        ),
        columns=tuple(known.columns),
        history=values[-length:].astype(np.float32),
        ahead=table(answer.output),
        low=table(answer.more["low"]) if "low" in answer.more else None,
        high=table(answer.more["high"]) if "high" in answer.more else None,
        patch=known.patch,
        call=0,  # a model that predicts few steps at once runs again for the later ones
    )


def forecast_picture(observation: Observation, options: LookOptions) -> Panels:
    """History, forecast with its band, and where the last patch looks."""
    assert isinstance(observation, SeriesObservation)
    layers, layer = layer_axis(observation, "self", options)
    heads = head_axis(observation, "self", options)
    B, _, T, _ = observation.sizes(layers[0], "self")
    columns = []
    for batch in range(B):
        found = []
        for number in layers:
            each = to_array(observation.attention(number, "self", T - 1, batch))
            both = [each.mean(0, keepdims=True), each] if heads.options[0] == "mean" else [each]
            found.append(np.concatenate(both) if len(heads.options) > 1 else both[0])
        columns.append(np.stack(found))
    attention: Array = np.stack(columns)
    title = (
        f"Forecast of {observation.ahead.shape[0]} steps, and where its last patch of {observation.patch} steps looks"
    )
    panel = ForecastPanel(
        title,
        observation.columns,
        observation.history,
        observation.ahead,
        observation.low,
        observation.high,
        attention,
        (layer, heads),
        observation.patch,
    )
    return Panels([panel], [])


def window_example(run: Any, chosen: SampleExample) -> LookInput:
    """The history [T, C], at most as long as the context, up to a window's end."""
    context, horizon = run.task.known.context, run.task.options.horizon
    values, number = chosen.sample.train.values, chosen.number
    end = len(values) - number * horizon
    if number and end < context:
        most = max(0, (len(values) - context) // horizon)
        raise WeftError(
            f"sample {chosen.sample.name} has no window {number}: its {len(values):,} steps hold {context} of history "
            f"up to number {most}, each {horizon} steps earlier"
        )
    return LookInput(values[max(0, end - context) : end], chosen.given)


PICTURE = TaskPicture("forecast", observe_forecast, forecast_picture, window_example)
