"""One self-contained interactive page: data, style and script in one file that opens from disk, without network."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from html import escape
from importlib.resources import files

from weft.figures.palette import COLOR_STOPS
from weft.figures.web.array_encoding import script_text
from weft.foundation.spec import Tree

SCRIPTS = (
    "base.js",
    "frame.js",
    "attention.js",
    "lines.js",
    "table.js",
    "bars.js",
    "tokens.js",
    "overlay.js",
    "series.js",
    "motion.js",
    "attention_steps.js",
    "records.js",
    "start.js",
)
# Nothing may be fetched, whatever the data holds.
POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:"


@cache
def _source(name: str) -> str:
    return (files("weft.figures.web") / "browser" / name).read_text(encoding="utf-8")


def page_text(title: str, words: str, panels: Sequence[Tree], left_out: Sequence[str] = ()) -> str:
    """The whole page."""
    data = {"title": title, "words": words, "left_out": list(left_out), "panels": list(panels), "colors": COLOR_STOPS}
    code = "\n".join(_source(name) for name in SCRIPTS)
    head = (
        '<meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(_drawable(title))}</title><style>{_source('page.css')}</style>"
    )
    body = (
        '<main id="page"></main><noscript>This page draws with JavaScript, which is switched off.</noscript>'
        f'<script type="application/json" id="data">{script_text(data)}</script>'
        f'<script>(function () {{\n"use strict";\n{code}\n}})();</script>'
    )
    return f'<!doctype html>\n<html lang="en"><head>{head}</head><body>{body}</body></html>\n'


def _drawable(text: str) -> str:
    """Without lone surrogates, which no file can hold."""
    return text.encode("utf-8", "replace").decode("utf-8")
