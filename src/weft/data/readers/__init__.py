"""Readers: one file per data format."""

from weft.foundation.packages import open_lazily

__getattr__ = open_lazily(__name__)
