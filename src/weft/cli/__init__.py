"""Command line: thin commands over the other packages."""

from weft.foundation.packages import open_lazily

__getattr__ = open_lazily(__name__)
