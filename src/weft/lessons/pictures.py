"""Pictures of a lesson: figures with a caption, which also serves those who cannot see them."""

from __future__ import annotations

import io
import sys
from functools import cached_property
from typing import TYPE_CHECKING, Any

from weft.figures.canvas import canvas_style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DOTS_PER_INCH = 110


class Picture:
    """A figure as a PNG: the value of a notebook's cell shows it."""

    def __init__(self, figure: Figure, caption: str) -> None:
        self.figure, self.caption = figure, caption

    @cached_property
    def png(self) -> bytes:
        """The same figure gives the same bytes."""
        place = io.BytesIO()
        with canvas_style():
            same = {"Software": None}  # the version of matplotlib would stand in every picture
            self.figure.savefig(
                place, format="png", dpi=DOTS_PER_INCH, bbox_inches="tight", facecolor="white", metadata=same
            )
        return place.getvalue()

    def __repr__(self) -> str:
        return f"[picture: {self.caption}]"

    def _repr_mimebundle_(self, **_: Any) -> dict[str, Any]:
        return {"image/png": self.png, "text/plain": repr(self)}


def show(figure: Figure, caption: str) -> Picture:
    """The figure with its caption, as the last line of a cell; one made by pyplot is not shown a second time."""
    picture = Picture(figure, caption)
    if "matplotlib.pyplot" in sys.modules:
        len(picture.png)  # drawn before pyplot lets go of it
        sys.modules["matplotlib.pyplot"].close(figure)
    return picture
