"""A picture: panels under a title, written as one interactive page (.html) or as a still (.png, .svg, .pdf)."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft.figures.canvas import GRAY, IMAGE_FORMATS, canvas_style, drawable_text, save_figure
from weft.figures.panels.panel import WIDTH, Panel, Sheet
from weft.figures.web.interactive import page_text
from weft.foundation.errors import WeftError
from weft.foundation.files.atomic_files import write_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure, SubFigure

PAGES = (".html", ".htm")
HEADING, NOTE, GAP = 0.34, 0.17, 0.18  # inches: a panel's title, one line of its note, the space below it
NOTE_LETTERS = 128


@dataclass(frozen=True)
class Picture:
    """Panels, one below the other; `words` says what the input was, `left_out` what is not shown and why."""

    title: str
    panels: tuple[Panel, ...]
    words: str = ""
    left_out: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.panels:
            raise WeftError(f"there is nothing to see in {self.title!r}: choose another --kind")

    def html(self) -> str:
        """The page as text: self-contained, no external reference."""
        return page_text(self.title, self.words, [panel.tree() for panel in self.panels], self.left_out)

    def figure(self) -> Figure:
        """The still as a matplotlib figure."""
        from matplotlib.figure import Figure

        with canvas_style():
            notes = [_note_lines(panel) for panel in self.panels]
            sizes = [
                HEADING + NOTE * len(lines) + panel.height() + GAP
                for panel, lines in zip(self.panels, notes, strict=True)
            ]
            head = 0.42 + (NOTE if self.words else 0)
            figure = Figure(figsize=(WIDTH, head + sum(sizes)))
            top, *boxes = figure.subfigures(len(sizes) + 1, 1, height_ratios=[head, *sizes], squeeze=False)[:, 0]
            self._draw_head(top, head)
            for panel, lines, box, size in zip(self.panels, notes, boxes, sizes, strict=True):
                _draw_panel(panel, lines, box, size)
        return figure

    def _draw_head(self, box: SubFigure, height: float) -> None:
        box.text(0, 1, drawable_text(self.title, 96), fontsize=13, weight="bold", va="top")
        if self.words:
            box.text(0, 1 - 0.27 / height, drawable_text(self.words, 140), fontsize=9, color=GRAY, va="top")

    def write(self, path: str | Path) -> Path:
        """Write .html, .png, .svg or .pdf, by the suffix."""
        path = Path(path)
        if path.suffix.lower() in IMAGE_FORMATS:
            return save_figure(self.figure(), path)
        if path.suffix.lower() not in PAGES:
            raise WeftError(f"cannot draw {path.name!r}: end the name in one of .html, {', '.join(IMAGE_FORMATS)}")
        write_text(path, self.html())
        return path

    def plots(self) -> list[Any]:
        """The panels as plotly figures, for a notebook."""
        from weft.figures.web.notebook import plotly_figure

        return [plotly_figure(panel) for panel in self.panels]


def _note_lines(panel: Panel) -> list[str]:
    """The choices that a still shows, the panel's note, and what cannot be chosen, wrapped."""
    words = ": ".join(filter(None, (panel.shown(), panel.note)))
    missing = " ".join(axis.missing for axis in panel.axes() if axis.missing)
    return textwrap.wrap(". ".join(filter(None, (words.rstrip("."), missing))), NOTE_LETTERS)


def _draw_panel(panel: Panel, notes: list[str], box: SubFigure, height: float) -> None:
    box.text(0, 1 - 0.04 / height, drawable_text(panel.title, 110), fontsize=11, weight="bold", va="top")
    for number, line in enumerate(notes):
        down = HEADING - 0.08 + NOTE * number
        box.text(0, 1 - down / height, drawable_text(line), fontsize=8.5, color=GRAY, va="top")
    start = HEADING + NOTE * len(notes)
    panel.draw(Sheet(box, WIDTH, height, start))
