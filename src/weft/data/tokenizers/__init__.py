"""Tokenizers: learned, loaded, and the vocabulary files of other libraries."""

from weft.foundation.packages import open_lazily

__getattr__ = open_lazily(__name__)
