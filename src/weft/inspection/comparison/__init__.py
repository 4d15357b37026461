"""Comparison: where two models diverge, and why."""
