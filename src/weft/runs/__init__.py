"""Runs: what users hold; loading, importing and exporting them."""
