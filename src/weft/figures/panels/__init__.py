"""Panels: one kind of drawing per file, as a still, in a page, or in a notebook."""

from weft.foundation.packages import open_lazily

__getattr__ = open_lazily(__name__)
