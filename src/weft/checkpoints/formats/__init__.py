"""Formats: reading other programs' checkpoint files, without running anything in them."""
