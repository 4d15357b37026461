"""torch.nn's own attention, transformer and recurrent layers: vectors in, vectors out, masks with True = hidden."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from weft.foreign.subject import NotTestable, Subject, SubjectCall
from weft.models.output import Declaration

ENCODERS = (nn.TransformerEncoder, nn.TransformerEncoderLayer)
DECODERS = (nn.TransformerDecoder, nn.TransformerDecoderLayer)
FAST, PLAIN = "fast path", "plain path"


class TorchSubject(Subject):
    """Encoder stacks, decoder stacks, nn.Transformer and MultiheadAttention, batch first or not.

    A decoder is called with the causal mask that its documentation asks for; an encoder with none. In eval mode torch
    has a fast path of its own for encoders, which is compared with the plain one.
    """

    batch_first: bool = True
    path: str = FAST

    def run(self, call: SubjectCall) -> Tensor:
        """[B, T, D] -> [B, T, D]."""
        x = call.content if self.batch_first else call.content.transpose(0, 1)
        hidden = None if call.real is None else ~call.real
        with _on(self.path):
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

    def _decode(self, x: Tensor, call: SubjectCall, hidden: Tensor | None) -> Tensor:
        if call.source is None:
            raise NotTestable("it needs a source")
        source = call.source if self.batch_first else call.source.transpose(0, 1)
        ahead = torch.ones(call.content.shape[1], call.content.shape[1], dtype=torch.bool).triu(1)
        source_hidden = None if call.source_real is None else ~call.source_real
        masks = {"tgt_mask": ahead, "tgt_key_padding_mask": hidden, "memory_key_padding_mask": source_hidden}
        if isinstance(self.module, nn.Transformer):
            return self.module(source, x, src_key_padding_mask=source_hidden, **masks)
        return self.module(x, source, **masks)

    def source(self, batch: int, length: int, random: torch.Generator) -> Tensor | None:
        if self.source_example is None:
            return None
        return torch.randn(batch, length, self.source_example.shape[-1], generator=random, dtype=torch.float64)

    def backends(self) -> tuple[str, ...]:
        """Encoders and attention have a fast path."""
        return (PLAIN, FAST) if isinstance(self.module, (*ENCODERS, nn.MultiheadAttention)) else ()

    def set_backend(self, name: str) -> None:
        """The choice is made around each call, so that the process keeps its own."""
        self.path = name

    def attention_maps(self, call: SubjectCall) -> dict[str, Tensor]:
        """Of a single MultiheadAttention, which gives them."""
        if not isinstance(self.module, nn.MultiheadAttention):
            raise NotTestable("its layers ask their attention for no weights")
        x = call.content if self.batch_first else call.content.transpose(0, 1)
        return {"attention": self.module(x, x, x, need_weights=True, average_attn_weights=False)[1]}


class RecurrentSubject(Subject):
    """nn.RNN, nn.GRU and nn.LSTM: the state is their cache."""

    def run(self, call: SubjectCall) -> Tensor:
        """[B, T, C] -> [B, T, D]."""
        call.takes()
        return self._step(call.content, None)[0]

    def make_cache(self, batch: int) -> Any:
        if not self.declares.cached:
            raise NotTestable("it reads in both directions, so it keeps no state")
        return None

    def run_cached(self, call: SubjectCall, cache: Any) -> tuple[Tensor, Any]:
        call.takes()
        return self._step(call.content, cache)

    def _step(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        first = bool(self.module.batch_first)
        y, state = self.module(x if first else x.transpose(0, 1), state)
        return y if first else y.transpose(0, 1), state


@contextmanager
def _on(path: str) -> Iterator[None]:
    """torch's fast path on or off, as it was afterwards; its note that nested tensors are new is kept quiet."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(path == FAST)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="The PyTorch API of nested tensors")
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


def torch_subject(module: nn.Module, example: Tensor | None) -> Subject | None:
    """The adapter for torch's transformer and recurrent modules; None for any other."""
    kind = type(module).__name__
    if isinstance(module, nn.RNNBase):
        causal = not module.bidirectional
        said = (
            "it reads forwards: it is taken to look only back" if causal else "it reads both ways: it sees everything"
        )
        declares = Declaration(kind, causal, causal, "none")
        return RecurrentSubject(module, declares, (said,), torch.zeros(1, 1, module.input_size))
    if not isinstance(module, (*ENCODERS, *DECODERS, nn.Transformer, nn.MultiheadAttention)):
        return None
    attention = next(part for part in module.modules() if isinstance(part, nn.MultiheadAttention))
    decoder = isinstance(module, (*DECODERS, nn.Transformer))
    width = example if example is not None and example.is_floating_point() else torch.zeros(1, 1, attention.embed_dim)
    declares = Declaration(kind, decoder, False, "none", order_free=not decoder, seq2seq=decoder)
    said = (
        f"{kind} is called with the causal tgt_mask that its documentation asks for, so it is taken to look only back"
        if decoder
        else f"{kind} is called without an attention mask, so it is taken to see everything, in any order"
    )
    layout = "[B, T, D]" if attention.batch_first else "[T, B, D]"
    assumed = (said, f"content goes in as {layout} (batch_first={attention.batch_first}); True in a padding mask hides")
    subject = TorchSubject(module, declares, assumed, width, width if decoder else None)
    subject.batch_first = attention.batch_first
    return subject
