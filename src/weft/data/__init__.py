"""Data: readers, tokenizers, batching and the built-in samples."""

from weft.foundation.packages import open_lazily

__getattr__ = open_lazily(__name__)
