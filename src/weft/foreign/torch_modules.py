"""torch.nn's own attention and transformer layers: vectors in, vectors out, masks with True = hidden."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from weft.foreign.subject import Call, Subject
from weft.models.output import Declaration

ENCODERS = (nn.TransformerEncoder, nn.TransformerEncoderLayer)
DECODERS = (nn.TransformerDecoder, nn.TransformerDecoderLayer)


class TorchSubject(Subject):
    """Encoder stacks, decoder stacks, nn.Transformer and MultiheadAttention, batch first or not.

    A decoder is called with the causal mask that its documentation asks for; an encoder with none.
    """

    batch_first: bool = True

    def run(self, call: Call) -> Tensor:
        """[B, T, D] -> [B, T, D]."""
        x = call.content if self.batch_first else call.content.transpose(0, 1)
        hidden = None if call.real is None else ~call.real
        if isinstance(self.module, (*DECODERS, nn.Transformer)):
            call.takes("real", "source", "source_real")
            y = self._decode(x, call, hidden)
        elif isinstance(self.module, nn.MultiheadAttention):
            call.takes("real")
            y, _ = self.module(x, x, x, key_padding_mask=hidden, need_weights=False)
        else:
            call.takes("real")
            y = self.module(x, src_key_padding_mask=hidden)
        return y if self.batch_first else y.transpose(0, 1)

    def _decode(self, x: Tensor, call: Call, hidden: Tensor | None) -> Tensor:
        assert call.source is not None
        source = call.source if self.batch_first else call.source.transpose(0, 1)
        ahead = torch.ones(call.content.shape[1], call.content.shape[1], dtype=torch.bool).triu(1)
        source_hidden = None if call.source_real is None else ~call.source_real
        if isinstance(self.module, nn.Transformer):
            return self.module(
                source, x, tgt_mask=ahead, src_key_padding_mask=source_hidden, tgt_key_padding_mask=hidden,
                memory_key_padding_mask=source_hidden,
            )  # fmt: skip
        return self.module(
            x, source, tgt_mask=ahead, tgt_key_padding_mask=hidden, memory_key_padding_mask=source_hidden
        )

    def source(self, batch: int, length: int, random: torch.Generator) -> Tensor | None:
        """Vectors of the same width."""
        if self.source_example is None:
            return None
        return torch.randn(batch, length, self.source_example.shape[-1], generator=random, dtype=torch.float64)


def torch_subject(module: nn.Module, example: Tensor | None) -> Subject | None:
    """The adapter for torch's transformer modules; None for any other."""
    if not isinstance(module, (*ENCODERS, *DECODERS, nn.Transformer, nn.MultiheadAttention)):
        return None
    attention = next(part for part in module.modules() if isinstance(part, nn.MultiheadAttention))
    decoder = isinstance(module, (*DECODERS, nn.Transformer))
    width = torch.zeros(1, 1, attention.embed_dim)
    declares = Declaration(type(module).__name__, decoder, False, "none", order_free=not decoder, seq2seq=decoder)
    assumed = (
        "a decoder is called with a causal tgt_mask, as its documentation asks" if decoder else "called without a mask",
    )
    subject = TorchSubject(module, declares, assumed, width, width if decoder else None)
    subject.batch_first = attention.batch_first
    del example
    return subject
