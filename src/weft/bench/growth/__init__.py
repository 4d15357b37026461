"""What grows with what: the axes of `weft bench growth`, and how one is measured."""

from weft.foundation.packages import open_lazily

__getattr__ = open_lazily(__name__)
