"""Figures: drawing from plain arrays and labels; knows no model."""

from weft.foundation.packages import open_lazily

__getattr__ = open_lazily(__name__)
