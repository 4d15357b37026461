"""Kinds of pictures that any run may have: attention, residual stream, model, one explained output."""

from weft.foundation.packages import open_lazily

__getattr__ = open_lazily(__name__)
