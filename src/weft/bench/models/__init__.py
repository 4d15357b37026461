"""The same models in other libraries and in plain torch, with Weft's weights copied over."""

from weft.foundation.packages import open_lazily

__getattr__ = open_lazily(__name__)
