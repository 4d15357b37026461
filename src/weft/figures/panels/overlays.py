"""Attention over an image as an overlay, and small pictures in a grid (filters, similarities)."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from weft.figures.canvas import COLORS, GRAY, drawable_text
from weft.figures.palette import ColorScale, to_colors
from weft.figures.panels.panel import WIDTH, Axis, Panel, Sheet, draw_thumbnail, expect_shape, token_label
from weft.figures.panels.tables import value_range
from weft.figures.web.array_encoding import encode_array
from weft.foundation.arrays import Array, Pixels
from weft.foundation.spec import Tree

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LARGE, SMALL = 2.6, 1.08  # inches
MOST_SMALL = 48
DIMMED, DARKEST = 0.6, 0.3  # brightness of the image under an overlay: that share of it, at most so much on average
GLOW, GLOW_COLOR = 0.62, (255, 158, 27)  # strength of the glow at the largest weight, and its color


@dataclass(frozen=True)
class OverlayPanel(Panel):
    """Pixels [height, width, 3] and maps [choices ..., rows, columns] over them, patch by patch."""

    title: str
    pixels: Pixels
    maps: Array
    choices: tuple[Axis, ...]
    note: str = ""

    kind = "overlay"

    def __post_init__(self) -> None:
        expect_shape("pixels", self.pixels, None, None, 3)
        expect_shape("maps over the image", self.maps, *(len(axis.options) for axis in self.choices), None, None)

    def axes(self) -> tuple[Axis, ...]:
        return self.choices

    def payload(self) -> Tree:
        dimmed = dimming(self.pixels)
        return {"pixels": encode_array(self.pixels, "u1"), "maps": encode_array(self.maps), "dimmed": dimmed}

    # --- the still ---------------------------------------------------------------------------------------------------

    def _others(self) -> list[tuple[int, ...]]:
        """All choices; with more than two axes those of the first one (words, say), the others as chosen."""
        varied = [range(len(axis.options)) for axis in self.choices]
        if len(varied) > 2:
            varied[1:] = [range(axis.chosen, axis.chosen + 1) for axis in self.choices[1:]]
        every = list(product(*varied))
        return every[:MOST_SMALL] if len(every) > 1 else []

    def _across(self) -> int:
        most = int(WIDTH / (SMALL + 0.1))
        return min(len(self.choices[1].options), most) if len(self.choices) == 2 else most

    def height(self) -> float:
        lines = -(-len(self._others()) // self._across()) if self._others() else 0
        return LARGE + 0.35 + lines * (SMALL + 0.28)

    def draw(self, sheet: Sheet) -> None:
        """The image, the chosen overlay, the map itself, and all overlays small."""
        chosen = tuple(axis.chosen for axis in self.choices)
        ratio = self.pixels.shape[1] / self.pixels.shape[0]
        wide = LARGE * min(1.15, ratio)
        names = ("the image", "glow: looked at most", "the map, patch by patch")
        for number, name in enumerate(names):
            axes = sheet.axes(number * (wide + 0.2), 0.22, wide, LARGE)
            if number == 0:
                axes.imshow(self.pixels, interpolation="nearest")
            elif number == 1:
                axes.imshow(highlight(self.pixels, self.maps[chosen]), interpolation="nearest")
            else:
                limits = value_range(self.maps[chosen], "share")
                axes.imshow(to_colors(self.maps[chosen], limits, "share"), interpolation="nearest", aspect="auto")
            _bare(axes, name)
        board = sheet.lower(LARGE + 0.5).board()
        for number, choice in enumerate(self._others()):
            line, place = divmod(number, self._across())
            x, y = place * (SMALL + 0.1), line * (SMALL + 0.28)
            here = choice == chosen
            colors = highlight(self.pixels, self.maps[choice])
            draw_thumbnail(board, colors, (x, y, SMALL, SMALL), COLORS[1] if here else "0.8", 1.8 if here else 0.8)
            words, ink = self._name(choice), COLORS[1] if here else GRAY
            size = 7.5 if len(words) < 18 else 5.8
            board.text(x + SMALL / 2, y - 0.03, words, ha="center", va="bottom", fontsize=size, color=ink)

    def _name(self, choice: tuple[int, ...]) -> str:
        """The option that varies, else all of them."""
        if len(self.choices) != 2:
            return token_label(self.choices[0].options[choice[0]], 15)
        short = (axis.named(place) for axis, place in zip(self.choices, choice, strict=True))
        return drawable_text(", ".join(short), 26)


@dataclass(frozen=True)
class TilesPanel(Panel):
    """Small pictures: colors [n, h, w, 3] from 0 to 1, or values [n, h, w]; `across` per row, each with a name."""

    title: str
    values: Array
    names: tuple[str, ...]
    across: int
    scale: ColorScale = "signed"
    note: str = ""

    kind = "tiles"

    def __post_init__(self) -> None:
        sizes = (None, None, 3) if self.values.ndim == 4 else (None, None)
        expect_shape("tiles", self.values, len(self.names), *sizes)

    def payload(self) -> Tree:
        """Values, or colors in 8 bits."""
        values = self.values
        if values.ndim == 4:
            return {
                "colors": encode_array(np.rint(255 * np.clip(values, 0, 1)), "u1"),
                "names": list(self.names),
                "across": self.across,
                "scale": self.scale,
            }
        return {"values": encode_array(values), "names": list(self.names), "across": self.across, "scale": self.scale}

    def _side(self) -> float:
        return min(1.1, (WIDTH - 0.1 * self.across) / self.across)

    def _gap(self) -> float:
        return 0.24 if self._side() >= 0.55 and any(self.names) else 0.06

    def height(self) -> float:
        lines = -(-len(self.names) // self.across)
        return lines * (self._side() + self._gap()) + 0.2

    def draw(self, sheet: Sheet) -> None:
        side, gap, board = self._side(), self._gap(), sheet.board()
        limits = value_range(self.values, self.scale)
        for number, name in enumerate(self.names):
            line, column = divmod(number, self.across)
            x, y = column * (side + 0.06), gap + line * (side + gap)
            given = self.values[number]
            pixels = np.clip(given, 0, 1) if given.ndim == 3 else to_colors(given, limits, self.scale)
            draw_thumbnail(board, pixels, (x, y, side, side), "0.8", 0.8)
            if gap > 0.1:
                board.text(x + side / 2, y - 0.03, drawable_text(name, 14), ha="center", va="bottom", fontsize=7)


def dimming(pixels: Pixels) -> float:
    """The share of its brightness that is left of an image: little of a light one, on which no glow would be seen."""
    return round(min(DIMMED, DARKEST * 255 / max(1.0, float(pixels.mean()))), 3)


def highlight(pixels: Pixels, values: Array) -> Pixels:
    """The image dimmed, with a glow where `values` [rows, columns] are large, and none where they are lowest."""
    height, width = pixels.shape[:2]
    low, high = float(values.min()), float(values.max())
    shares = (values - low) / (high - low) if high > low else np.zeros_like(values)
    rows = np.minimum(np.arange(height) * values.shape[0] // height, values.shape[0] - 1)
    columns = np.minimum(np.arange(width) * values.shape[1] // width, values.shape[1] - 1)
    glow = GLOW * shares[rows][:, columns][..., None]
    return np.rint(pixels * dimming(pixels) * (1 - glow) + glow * np.array(GLOW_COLOR)).astype(np.uint8)


def stretch_colors(values: NDArray[Any]) -> Array:
    """Tiles [n, h, w, 3] or [n, h, w, 1] as colors from 0 to 1, each scaled to its own range around middle gray."""
    array = np.asarray(values, dtype=np.float64)
    array = np.repeat(array, 3, axis=-1) if array.shape[-1] == 1 else array
    top = np.abs(array).max(axis=(1, 2, 3), keepdims=True)
    return (0.5 + array / np.where(top > 0, 2 * top, 1)).astype(np.float32)


def _bare(axes: Axes, title: str) -> None:
    axes.set_xticks([])
    axes.set_yticks([])
    axes.spines[:].set_visible(True)
    axes.spines[:].set_color("0.8")
    axes.set_title(title, fontsize=9, pad=3)
