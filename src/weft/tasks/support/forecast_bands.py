"""What a model says of a window: the forecast of its last patch, and the band that holds 80 % of the values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

from torch import Tensor, nn

from weft.parts.outputs import ForecastHead
from weft.tasks.support.splits.series_windows import window_scale

BAND = 0.8  # the share of values that a band is to hold
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
