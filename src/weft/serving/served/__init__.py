"""Runs that are served: each in a thread of its own, and the tickets that wait for them."""

from weft.foundation.packages import open_lazily

__getattr__ = open_lazily(__name__)
