"""Parts: pure functions and small modules, tensors in, tensors out. Every equation of the lectures is one of them."""

from weft.foundation.packages import open_lazily

__getattr__ = open_lazily(__name__)
