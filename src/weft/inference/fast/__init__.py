"""Fast: the single-token path, packed and quantized weights, native code."""

from weft.foundation.packages import open_lazily

__getattr__ = open_lazily(__name__)
