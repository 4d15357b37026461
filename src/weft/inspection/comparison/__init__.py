"""Comparison: where two models part, and why."""
