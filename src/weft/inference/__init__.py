"""Inference: sampling, beam search, cached and speculative decoding; on token ids and modules."""
