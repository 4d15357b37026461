"""Web: self-contained HTML pages and plotly figures for notebooks."""

from weft.foundation.packages import open_lazily

__getattr__ = open_lazily(__name__)
