"""Data: readers, tokenisers, batching and the built-in samples."""
