"""Formats: reading other programs' checkpoint files, without running anything in them."""

from weft.foundation.packages import open_lazily

__getattr__ = open_lazily(__name__)
