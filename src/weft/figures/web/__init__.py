"""Web: self-contained HTML pages and plotly figures for notebooks."""
