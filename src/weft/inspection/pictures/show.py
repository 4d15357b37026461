"""Showing what was seen: inline in a notebook (plotly), else as a page that opens in the browser."""

from __future__ import annotations

import sys
import tempfile
import webbrowser
from html import escape
from pathlib import Path
from typing import Any

from weft.figures.picture import Picture
from weft.foundation.errors import WeftError
from weft.inspection.pictures.generic import observation_of
from weft.inspection.pictures.look import picture_of
from weft.inspection.pictures.look_options import LookOptions
from weft.inspection.recording.watch import Seen


def show(
    seen: Seen,
    kind: str | None = None,
    *,
    layer: int | None = None,
    head: int | None = None,
    row: str | int | None = None,
    pair: tuple[str, str] | None = None,
    call: int = -1,
    batch: int = 0,
    path: str | Path | None = None,
) -> Any:
    """`seen.show()`: in a notebook the figures appear inline; elsewhere the path of the page is returned.

    `path` writes .html, .png or .svg there instead; without it a page is written to a temporary file and opened.
    """
    options = LookOptions(kind, layer, head, None if row is None else str(row), pair)
    picture = picture_of(observation_of(seen, call, batch), options)
    if path is not None:
        return picture.write(path)
    if in_notebook():
        return _inline(picture)
    with tempfile.NamedTemporaryFile("w", suffix=".html", prefix="weft-", delete=False, encoding="utf-8") as file:
        file.write(picture.html())
    if sys.stdout.isatty():
        webbrowser.open(Path(file.name).as_uri())
    return Path(file.name)


def in_notebook() -> bool:
    """Whether this runs in a notebook's kernel."""
    if "IPython" not in sys.modules:
        return False
    from IPython import get_ipython

    return type(get_ipython()).__name__ == "ZMQInteractiveShell"


def _inline(picture: Picture) -> None:
    """Plotly figures one below the other; without plotly the page itself in a frame."""
    from IPython.display import HTML, display

    try:
        plots = picture.plots()
    except WeftError:
        display(HTML(f'<iframe srcdoc="{escape(picture.html())}" width="100%" height="720"></iframe>'))
        return
    for plot in plots:
        display(plot)
