"""Panels: one kind of drawing per file, as a still, in a page, or in a notebook."""
