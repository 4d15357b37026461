"""Commands: one file each."""

from weft.foundation.packages import open_lazily

__getattr__ = open_lazily(__name__)
