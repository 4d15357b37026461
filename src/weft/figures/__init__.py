"""Figures: drawing from plain arrays and labels; knows no model."""
