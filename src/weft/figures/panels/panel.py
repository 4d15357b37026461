"""A panel is one drawing of plain arrays: as a still, as data of an interactive page, or in a notebook.

Axes of choices (layer, head, word, ...) come first in its arrays; in a page the reader chooses, a still shows one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from weft.figures.canvas import GRAY, drawable_text
from weft.foundation.arrays import Array
from weft.foundation.errors import WeftError
from weft.foundation.spec import Tree

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import SubFigure

WIDTH = 9.6  # inches of a still
LONGEST_TOKEN = 18


@dataclass(frozen=True)
class Axis:
    """A choice, such as the layer: its name, its options, and the one shown first.

    `missing` says what is not among the options, and why.
    """

    name: str
    options: tuple[str, ...]
    chosen: int = 0
    missing: str = ""

    def __post_init__(self) -> None:
        if not 0 <= self.chosen < len(self.options):
            raise WeftError(f"{self.name} {self.chosen} of {len(self.options)}: choose one from 0 on")

    def named(self, place: int) -> str:
        """An option in words: "head 1", or just "mean"."""
        option = self.options[place]
        return f"{self.name} {option}" if option.isdigit() else option

    def tree(self) -> Tree:
        return {"name": self.name, "options": list(self.options), "chosen": self.chosen, "missing": self.missing}


@dataclass(frozen=True)
class Sheet:
    """Where a panel draws its still: a part of a figure, in inches from its upper left corner."""

    box: SubFigure
    width: float
    height: float
    down: float = 0.0

    def lower(self, down: float) -> Sheet:
        """The same sheet, `down` inches lower."""
        return replace(self, down=self.down + down)

    def axes(self, left: float, top: float, width: float, height: float) -> Axes:
        low = 1 - (self.down + top + height) / self.height
        return self.box.add_axes((left / self.width, low, width / self.width, height / self.height))

    def board(self) -> Axes:
        """Axes over the whole sheet, in inches: many small drawings there are far cheaper than axes for each."""
        height = self.height - self.down
        found = self.axes(0, 0, self.width, height)
        found.set_axis_off()
        found.set(xlim=(0, self.width), ylim=(height, 0), autoscale_on=False)
        return found

    def text(self, left: float, top: float, words: str, **style: Any) -> None:
        """Text with its upper left corner here."""
        style = {"fontsize": 9, "va": "top", "ha": "left", **style}
        self.box.text(left / self.width, 1 - (self.down + top) / self.height, words, **style)


def draw_thumbnail(
    board: Axes, pixels: NDArray[Any], place: tuple[float, float, float, float], edge: str, line: float
) -> None:
    """Draw a small picture (colors [h, w, 4 or 3]) on a board at (left, top, width, height), with a frame."""
    from matplotlib.patches import Rectangle

    x, y, wide, tall = place
    board.imshow(pixels, extent=(x, x + wide, y + tall, y), aspect="auto", interpolation="nearest")
    board.add_patch(Rectangle((x, y), wide, tall, fill=False, edgecolor=edge, linewidth=line))


class Panel(ABC):
    """A drawing with a title and `note`, a sentence that says what it shows."""

    kind: ClassVar[str]
    title: str
    note: str

    @abstractmethod
    def payload(self) -> Tree:
        """What a page needs to draw it, as plain JSON with encoded arrays."""

    @abstractmethod
    def height(self) -> float:
        """Inches of its still, without title and note."""

    @abstractmethod
    def draw(self, sheet: Sheet) -> None:
        """Draw its still."""

    def axes(self) -> tuple[Axis, ...]:
        """What there is to choose."""
        return ()

    def tree(self) -> Tree:
        """The payload with kind, title, note and axes, for a page."""
        axes = [axis.tree() for axis in self.axes()]
        return {"kind": self.kind, "title": self.title, "note": self.note, "axes": axes, **self.payload()}

    def shown(self) -> str:
        """Which choices a still shows, in words: "layer 1, head 0"."""
        return ", ".join(axis.named(axis.chosen) for axis in self.axes() if len(axis.options) > 1)


def expect_shape(name: str, values: NDArray[Any], *sizes: int | None) -> None:
    """Refuse an array of another shape; None fits any size."""
    fits = values.ndim == len(sizes) and all(s in (None, n) for s, n in zip(sizes, values.shape, strict=False))
    if not fits:
        shape, wanted = "x".join(map(str, values.shape)), "x".join("n" if s is None else str(s) for s in sizes)
        raise WeftError(f"{name} has shape {shape}, but {wanted} is needed")


def as_array(values: Any) -> Array:
    """The values as a float32 array."""
    return np.asarray(values, dtype=np.float32)


def token_label(token: str, most: int = LONGEST_TOKEN) -> str:
    """A token as it can be drawn, with its outer blanks visible, so that " the" and "the" differ."""
    return drawable_text(visible_token(token), most)


def visible_token(token: str) -> str:
    """The token with outer blanks and breaks visible; an empty one as ∅."""
    inner = token.strip(" ")
    left = len(token) - len(token.lstrip(" "))
    shown = "␣" * left + inner + "␣" * (len(token) - left - len(inner)) if inner else "␣" * len(token) or "∅"
    return shown.replace("\n", "↵").replace("\r", "↵").replace("\t", "⇥")


def label_ticks(axes: Axes, labels: Sequence[str], side: str, cell: float, upright: bool = True) -> None:
    """Labels at the rows ("y") or above the columns ("x") of a heat map with cells of `cell` inches.

    Letters shrink with the cells; where they would be too small, every n-th position is numbered instead.
    """
    size = min(10.0, 72 * cell * 0.72)
    here = axes.xaxis if side == "x" else axes.yaxis
    if size < 5.5:
        step = next(step for step in (5, 10, 20, 50, 100, 200, 500, 1000, 10**9) if step * cell > 0.35)
        places = list(range(0, len(labels), step))
        here.set_ticks(places, labels=[str(place) for place in places], fontsize=8, color=GRAY)
    else:
        turn = 90 if side == "x" and upright and max(map(len, map(token_label, labels))) > 2 else 0
        here.set_ticks(
            range(len(labels)), labels=[token_label(label) for label in labels], fontsize=size, rotation=turn
        )
    if side == "x":
        axes.tick_params(axis="x", length=0, pad=3, top=False, bottom=False, labeltop=True, labelbottom=False)
    else:
        axes.tick_params(axis="y", length=0, pad=3)
