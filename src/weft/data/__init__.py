"""Data: readers, tokenizers, batching and the built-in samples."""
