"""Peaks of memory: trainings against their plan, imports against their files."""

from weft.foundation.packages import open_lazily

__getattr__ = open_lazily(__name__)
