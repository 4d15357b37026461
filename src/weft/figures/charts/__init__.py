"""Charts: single matplotlib drawings (curves, forecasts, alignments, grids)."""

from weft.foundation.packages import open_lazily

__getattr__ = open_lazily(__name__)
