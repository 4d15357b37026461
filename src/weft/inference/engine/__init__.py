"""Engine: continuous batching of many requests."""

from weft.foundation.packages import open_lazily

__getattr__ = open_lazily(__name__)
