"""Token stores: texts of any size as tokens on disk, read in windows."""

from weft.foundation.packages import open_lazily

__getattr__ = open_lazily(__name__)
