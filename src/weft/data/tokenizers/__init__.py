"""Tokenizers: learned, loaded, and the vocabulary files of other libraries."""
