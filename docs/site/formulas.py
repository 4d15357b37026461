"""Formulas as MathML, which browsers draw themselves: no script and no font is loaded."""

from __future__ import annotations

import html
import re

from latex2mathml.converter import convert

INLINE = re.compile(r'<span class="arithmatex">\\\((.*?)\\\)</span>', re.S)
BLOCK = re.compile(r'<div class="arithmatex">\s*\\\[(.*?)\\\]\s*</div>', re.S)


def draw_formulas(page: str) -> str:
    """The page with each formula that `pymdownx.arithmatex` marked written as MathML."""
    page = INLINE.sub(lambda found: convert(html.unescape(found[1])), page)
    return BLOCK.sub(lambda found: convert(_known(html.unescape(found[1].strip())), display="block"), page)


def _known(formula: str) -> str:
    """latex2mathml knows `aligned` by its other name only."""
    return formula.replace("{aligned}", "{split}")
