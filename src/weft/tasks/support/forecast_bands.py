"""What a model says of a window: the forecast of its last patch, and the band that holds 80 % of the values.

Bands are made to hold what they promise: their halves are multiplied by the 80 % quantile of |error| / half on held-out
windows (split conformal prediction, Papadopoulos et al. 2002; Lei et al. 2018).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from weft.parts.outputs import ForecastHead
from weft.tasks.support.splits.series_windows import WindowSplit, window_scale

BAND = 0.8  # the share of values that a band is to hold
MOST_VALUES = 2_000_000  # that the width of bands is fitted to
WINDOWS_AT_ONCE = 256
BAND_END = 1.2815515655446004  # the normal quantile of 0.9: 80 % lie between its negative and itself


@dataclass(frozen=True)
class Forecast:
    """Point forecasts [B, H, C] with the ends of the band that holds 80 % of the values, where the model has one."""

    point: Tensor
    low: Tensor | None = None
    high: Tensor | None = None


def predict_patches(module: nn.Module, history: Tensor) -> tuple[Tensor, Any]:
    """The last token's raw parameters [B, steps, C, 1 to 3] for a history [B, S, C], and the model's output."""
    center, spread = window_scale(history)
    output = module((history - center) / spread)
    raw = cast(ForecastHead, module.head)(output.hidden[:, -1])
    return raw.unflatten(1, (-1, history.shape[2])), output


def half_band(head: ForecastHead, raw: Tensor) -> Tensor:
    """Half the width of the 80 % band, in the window's units.

    The quantile of a Student-t of f degrees of freedom is the normal one z with the terms of Cornish and Fisher
    (Abramowitz and Stegun 26.7.5), within 0.4 % for f >= 2.
    """
    found: Any = head.distribution(raw)
    z = BAND_END
    freedom = getattr(found, "df", None)
    if freedom is None:
        return found.scale * z
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    )
    return found.scale * (z + sum(term / freedom ** (power + 1) for power, term in enumerate(terms)))


def fit_band(forecast: Callable[[nn.Module, Tensor], Forecast], module: nn.Module, split: WindowSplit) -> float:
    """By how much bands are to be widened to hold their share; 1 where there are none, or where it does not help.

    It is fitted on either half of the time and judged on the other by how far the share is from what was promised, then
    on all windows.
    """
    count = min(len(split), max(2, MOST_VALUES // split.horizon))
    windows = np.sort(np.random.default_rng(0).choice(len(split), count, replace=False)).tolist()
    device = next(module.parameters()).device
    rows = []
    for first in range(0, len(windows), WINDOWS_AT_ONCE):
        batch = split.batch(windows[first : first + WINDOWS_AT_ONCE]).to(device)
        found = forecast(module, batch.inputs["history"])
        if found.high is None:
            return 1.0
        half = (found.high - found.point).cpu().double().clamp(min=1e-12)
        rows.append(((found.point - batch.labels).cpu().double().abs() / half).flatten(1))
    ratios = torch.cat(rows).numpy()
    parts = ratios[: len(ratios) // 2], ratios[len(ratios) // 2 :]
    if not min(map(len, parts)):
        return 1.0
    before = after = 0.0
    for fitted, judged in (parts, parts[::-1]):
        before += abs(float((judged <= 1).mean()) - BAND)
        after += abs(float((judged <= np.quantile(fitted, BAND)).mean()) - BAND)
    return round(float(np.quantile(ratios, BAND)), 4) if after < before else 1.0
