"""Support: what several tasks share."""

from weft.foundation.packages import open_lazily

__getattr__ = open_lazily(__name__)
