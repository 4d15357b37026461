"""What all figures share: colors, fonts for the world's scripts, drawable labels, writing to a file."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft.foundation.errors import WeftError
from weft.foundation.files.atomic_files import write_atomic

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLORS = ("#0969da", "#bc4c00", "#1a7f37", "#8250df", "#cf222e", "#6e7781", "#bf3989", "#9a6700")
GRAY = "#57606a"
IMAGE_FORMATS = (".png", ".svg", ".pdf")
FONTS = (
    "DejaVu Sans", "Noto Sans CJK JP", "Noto Sans CJK SC", "Source Han Sans", "WenQuanYi Zen Hei", "Arial Unicode MS",
    "Hiragino Sans", "PingFang SC", "Microsoft YaHei", "Yu Gothic", "Malgun Gothic", "Noto Sans Devanagari",
    "Nirmala UI", "Segoe UI Symbol", "Noto Emoji",
)  # fmt: skip
VISIBLE_BREAKS = {"\n": "↵", "\r": "↵", "\t": "⇥"}


@contextmanager
def canvas_style() -> Iterator[None]:
    """Fonts and lines of figures made inside; the caller's settings are restored afterwards."""
    import matplotlib

    settings: Any = {
        "font.family": list(_fonts()),
        "font.size": 10,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": False,
        "axes.edgecolor": GRAY,
        "axes.unicode_minus": True,
        "grid.color": "0.9",
        "legend.frameon": False,
        "svg.hashsalt": "weft",
    }
    with matplotlib.rc_context(settings):
        yield


def save_figure(figure: Figure, path: str | Path) -> Path:
    """Write a figure as .png, .svg or .pdf, by the suffix; the same figure gives the same .svg bytes."""
    path = Path(path)
    if path.suffix.lower() not in IMAGE_FORMATS:
        raise WeftError(f"cannot draw {path.name!r}: end the name in one of {', '.join(IMAGE_FORMATS)}")
    metadata: dict[str, Any] = {"Date": None} if path.suffix.lower() == ".svg" else {}
    kind = path.suffix.lower().removeprefix(".")

    def save(fresh: Path) -> None:
        with canvas_style():
            figure.savefig(fresh, format=kind, dpi=150, bbox_inches="tight", metadata=metadata)

    write_atomic(path, save)
    return path


def drawable_text(text: str, most: int = 0) -> str:
    """The text as it can be drawn: breaks visible, missing glyphs as □, no formulas, cut after `most` letters."""
    text = text if not most or len(text) <= most else text[: most - 1] + "…"
    known = _letters()
    shown = "".join(
        letter if letter in known else "□" for letter in (VISIBLE_BREAKS.get(letter, letter) for letter in text)
    )
    return shown.replace("$", r"\$")


@cache
def _fonts() -> tuple[str, ...]:
    from matplotlib.font_manager import fontManager

    installed = {entry.name for entry in fontManager.ttflist}
    return tuple(name for name in FONTS if name in installed)


@cache
def _letters() -> frozenset[str]:
    from matplotlib.font_manager import FontProperties, findfont, get_font

    found = (get_font(findfont(FontProperties(family=name))) for name in _fonts())
    return frozenset(chr(code) for font in found for code in font.get_charmap())
