"""Pictures: what `weft look` draws, one file per task."""
