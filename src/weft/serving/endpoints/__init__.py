"""The paths of the API, one file per group."""

from weft.foundation.packages import open_lazily

__getattr__ = open_lazily(__name__)
