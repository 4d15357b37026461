"""Analysis: numbers computed from recorded attention and activations."""

from weft.foundation.packages import open_lazily

__getattr__ = open_lazily(__name__)
