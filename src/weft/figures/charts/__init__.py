"""Charts: single matplotlib drawings (curves, forecasts, alignments, grids)."""
