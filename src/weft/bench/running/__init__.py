"""Processes that take turns, their times, what disturbed them, and the machine's limits."""

from weft.foundation.packages import open_lazily

__getattr__ = open_lazily(__name__)
