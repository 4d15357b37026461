"""Color scales: sequential and diverging, with the same stops for stills, pages and notebooks.

Blue against orange, which all common kinds of color blindness distinguish; lightness alone orders the values.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from matplotlib.colors import Colormap

ColorScale = Literal["share", "signed"]

# By scale: stops from the lowest to the highest value, on a light and on a dark background.
COLOR_STOPS: dict[ColorScale, dict[str, tuple[str, ...]]] = {
    "share": {
        "light": ("#ffffff", "#d3e5f5", "#8fc1e3", "#3f8fc9", "#135a9c", "#08306b"),
        "dark": ("#15181d", "#16324d", "#1d5c8f", "#3f93cf", "#93cdf2", "#f4fbff"),
    },
    "signed": {
        "light": ("#8a3b00", "#d9731a", "#f7c79b", "#ffffff", "#a9cfea", "#2f7fc0", "#08306b"),
        "dark": ("#ffd9a8", "#f0923c", "#7a4214", "#15181d", "#1a4a75", "#4a9fdc", "#e2f3ff"),
    },
}


@cache
def color_map(scale: ColorScale) -> Colormap:
    """The scale for matplotlib; missing values are gray."""
    from matplotlib.colors import LinearSegmentedColormap

    found = LinearSegmentedColormap.from_list(f"weft-{scale}", COLOR_STOPS[scale]["light"])
    return found.with_extremes(bad="#e6e8eb")


def to_colors(values: NDArray[Any], limits: tuple[float, float], scale: ColorScale) -> NDArray[np.uint8]:
    """Values as RGBA colors [..., 4]; `limits` are the ends of the scale."""
    low, high = limits
    shares = (np.asarray(values, dtype=np.float64) - low) / ((high - low) or 1.0)
    found: NDArray[np.uint8] = color_map(scale)(np.ma.masked_invalid(shares), bytes=True)
    return found


def plotly_colors(scale: ColorScale) -> list[tuple[float, str]]:
    """The scale for plotly: (position from 0 to 1, color)."""
    stops = COLOR_STOPS[scale]["light"]
    return [(number / (len(stops) - 1), color) for number, color in enumerate(stops)]
