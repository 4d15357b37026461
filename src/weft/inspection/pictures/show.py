"""Showing what was seen: inline in a notebook (plotly), else as a page that opens in the browser."""

from __future__ import annotations

import sys
import tempfile
import webbrowser
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from weft.figures.picture import Picture
from weft.foundation.errors import WeftError
from weft.inspection.pictures.labels import input_labels
from weft.inspection.pictures.look import picture_of
from weft.inspection.pictures.observations import ImageObservation, Observation, class_tokens
from weft.inspection.pictures.panels import LookOptions
from weft.inspection.recording.watch import Seen

# Tasks whose pictures need no more than what was seen; an image's are drawn for every vision model.
GENERIC = ("text", "translation", "classification", "tagging", "embedding")


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
    options = LookOptions(layer, head, None if row is None else str(row), pair)
    picture = picture_of(observation_of(seen, call, batch), kind, options)
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


def observation_of(seen: Seen, call: int = -1, batch: int = 0) -> Observation:
    """A observation from what was seen alone: labels from what went into the embeddings, by the run's own words."""
    run = seen.subject
    task = getattr(getattr(run, "task", None), "name", "")
    target, source = (input_labels(run, seen.inputs(batch, call, side)) for side in ("target", "source"))
    image = next((x for x in seen.inputs(batch, call).values() if x.dim() == 3 and x.is_floating_point()), None)
    observation = Observation(
        seen,
        task if task in GENERIC else "",
        _name(target, source),
        tuple(target),
        source=tuple(source),
        # A row writes the token that the next one reads; what the last one wrote was never read.
        written=(*target[1:], "…") if source else (),
        call=call,
        batch=batch,
    )
    spec: Any = getattr(seen.module, "spec", None)
    if image is None or getattr(spec, "family", "") != "vision":
        return observation
    cells = [f"{row},{column}" for row in range(spec.side) for column in range(spec.side)]
    tokens, grid = (*class_tokens(spec), *cells), (spec.side, spec.side)
    return ImageObservation(
        seen,
        "images",
        "an image",
        tokens,
        call=call,
        batch=batch,
        pixels=_pixels(image),
        grid=grid,
        first=spec.extra,
    )


def _name(target: Sequence[str], source: Sequence[str]) -> str:
    words = list(source or target)
    text = ("" if any(" " in word for word in words) else " ").join(words)
    return text[:60] + ("…" if len(text) > 60 else "") or "what was seen"


def _pixels(image: Tensor) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """[C, H, W] of any scale as bytes [H, W, 3], from its darkest to its brightest."""
    values = image.detach().float().cpu().numpy().transpose(1, 2, 0)
    low, high = float(values.min()), float(values.max())
    shown = np.rint(255 * (values - low) / ((high - low) or 1.0)).astype(np.uint8)
    return np.repeat(shown, 3, axis=2) if shown.shape[2] == 1 else shown[..., :3]
