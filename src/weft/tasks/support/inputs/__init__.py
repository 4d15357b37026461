"""Inputs: what users give, as rows of tables or files, and how it becomes what a model reads."""

from weft.foundation.packages import open_lazily

__getattr__ = open_lazily(__name__)
