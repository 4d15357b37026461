"""Tasks: one file each; how data is read, the default model, loss, metric, prediction."""

from weft.foundation.packages import open_lazily

__getattr__ = open_lazily(__name__)
