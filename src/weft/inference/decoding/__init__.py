"""Decoding: sampling, beam search, generation, speculative decoding."""
