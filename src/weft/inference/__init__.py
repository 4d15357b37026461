"""Inference: sampling, beam search, cached and speculative decoding, the batching engine; on token ids and modules."""
