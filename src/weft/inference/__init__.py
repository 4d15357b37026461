"""Inference: sampling, beam search, cached and speculative decoding, the batching engine; on token ids and modules."""

from weft.foundation.packages import open_lazily

__getattr__ = open_lazily(__name__)
