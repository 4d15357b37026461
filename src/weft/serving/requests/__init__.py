"""Bodies of requests, checked field by field; what is not supported is refused by name."""

from weft.foundation.packages import open_lazily

__getattr__ = open_lazily(__name__)
