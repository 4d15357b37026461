"""Runs: what users hold; loading, importing and exporting them."""

from weft.foundation.packages import open_lazily

__getattr__ = open_lazily(__name__)
