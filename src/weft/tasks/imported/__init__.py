"""Tasks of imported models: they are used and evaluated here, not trained."""

from weft.foundation.packages import open_lazily

__getattr__ = open_lazily(__name__)
