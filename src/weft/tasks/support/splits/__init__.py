"""Splits: the examples of each kind of data, in batches that follow from a seed."""

from weft.foundation.packages import open_lazily

__getattr__ = open_lazily(__name__)
