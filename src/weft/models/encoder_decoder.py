"""Encoder-decoder: an encoder sees the whole source; each decoder layer has masked self-attention, attention to all
encoder states, and an MLP (Vaswani et al. 2017, T5)."""

from __future__ import annotations

from functools import partial
from typing import ClassVar, Literal, Self

from pydantic import NonNegativeInt, PositiveInt, model_validator
from torch import Tensor, nn

from weft.models.output import Declaration, Memory, Output
from weft.models.part_specs import AttentionSpec, HeadSpec, TiedHeadSpec
from weft.models.stack_spec import StackSpec, arrange_call, as_mask, expect_tokens, seen_by
from weft.parts.auxiliary import Auxiliary
from weft.parts.embeddings import SequenceInput, TokenEmbedding
from weft.parts.masks import Mask
from weft.parts.outputs import CappedHead, LanguageHead, TiedHead
from weft.parts.stack import Stack
from weft.parts.state import State


class EncoderDecoderSpec(StackSpec):
    """`layers` encoder blocks, `decoder_layers` decoder blocks (as many if not given).

    Without `target_vocabulary` source and target share one vocabulary and one embedding. `input_norm` puts a norm
    before the first block of each (BART).
    """

    CAUSAL: ClassVar[bool] = False

    family: Literal["encoder-decoder"] = "encoder-decoder"
    vocabulary: PositiveInt = 256
    target_vocabulary: PositiveInt | None = None
    length: PositiveInt = 256
    decoder_layers: NonNegativeInt | None = None
    embedding_scale: float = 1.0
    input_norm: bool = False
    head: HeadSpec = TiedHeadSpec()

    @model_validator(mode="after")
    def _attends(self) -> Self:
        if not all(isinstance(mixer, AttentionSpec) for mixer in self.mixer):
            raise ValueError("mixer must be attention in an encoder-decoder: for recurrence use recurrent-seq2seq")
        if self.positions.own_width() and self.head.kind == "tied":
            raise ValueError("positions.join concatenate makes the embedding narrower than width: use head.kind linear")
        return self

    def build(self) -> EncoderDecoder:
        """The model, with torch's own random weights; `weft.build` initializes it."""
        own = self.width - self.positions.own_width()
        embedding = TokenEmbedding(self.vocabulary, own, self.embedding_scale)
        own_target = self.target_vocabulary is not None
        targets = self.target_vocabulary or self.vocabulary
        target_embedding = TokenEmbedding(targets, own, self.embedding_scale) if own_target else None
        decoder_layers = self.layers if self.decoder_layers is None else self.decoder_layers
        return EncoderDecoder(
            self,
            embedding,
            self._build_input(),
            self.build_stack(seen_by(causal=False), causal=False),
            target_embedding,
            self._build_input(),
            self.build_stack(seen_by(causal=True), decoder_layers, cross=True, causal=True),
            self.head.build(self.width, targets),
        )

    def _build_input(self) -> SequenceInput:
        position = self.positions.build_input(self.length, self.width)
        return SequenceInput(
            position, norm=self.norm.build(self.width) if self.input_norm else None, dropout=self.dropout
        )

    def declares(self) -> Declaration:
        """A causal, cached decoder that sees all of the source."""
        targets = self.target_vocabulary or self.vocabulary
        layers = self.layers if self.decoder_layers is None else self.decoder_layers
        return self.declare(self.family, layers, self.length, causal=True, vocabulary=targets, seq2seq=True)


class EncoderDecoder(nn.Module):
    """`model(source, target)` trains; `encode` once and `decode` with a state to generate."""

    def __init__(
        self,
        spec: EncoderDecoderSpec,
        embedding: TokenEmbedding,
        source_input: SequenceInput,
        encoder: Stack,
        target_embedding: TokenEmbedding | None,
        target_input: SequenceInput,
        decoder: Stack,
        head: LanguageHead | TiedHead | CappedHead,
    ) -> None:
        super().__init__()
        self.spec = spec
        self.embedding, self.source_input, self.encoder = embedding, source_input, encoder
        self.target_embedding, self.target_input = target_embedding, target_input
        self.decoder, self.head = decoder, head

    def encode(
        self,
        source: Tensor,
        positions: Tensor | None = None,
        mask: Mask | Tensor | None = None,
        auxiliary: Auxiliary | None = None,
    ) -> Memory:
        """Source tokens [B, S] -> memory [B, S, D]."""
        expect_tokens(source)
        mask = as_mask(mask)
        token_positions = arrange_call(source, positions, mask, None)
        if auxiliary is not None:
            auxiliary.real = token_positions.real
        hidden = self.encoder(
            self.source_input(self.embedding(source), token_positions), token_positions, mask, auxiliary=auxiliary
        )
        return Memory(hidden, token_positions)

    def decode(
        self,
        target: Tensor,
        memory: Memory,
        positions: Tensor | None = None,
        mask: Mask | Tensor | None = None,
        state: State | None = None,
        auxiliary: Auxiliary | None = None,
    ) -> Output:
        """Target tokens [B, T] -> hidden [B, T, D], logits [B, T, C]."""
        expect_tokens(target)
        mask = as_mask(mask)
        token_positions = arrange_call(target, positions, mask, state)
        auxiliary = auxiliary or Auxiliary()
        auxiliary.real = token_positions.real
        embedding = self.target_embedding or self.embedding
        x = self.target_input(embedding(target), token_positions)
        hidden = self.decoder(
            x, token_positions, mask, state, memory=(memory.hidden, memory.token_positions), auxiliary=auxiliary
        )
        return Output(hidden, partial(self.head, embedding=embedding), state, auxiliary.summary())

    def forward(
        self,
        source: Tensor,
        target: Tensor,
        source_mask: Mask | Tensor | None = None,
        mask: Mask | Tensor | None = None,
    ) -> Output:
        """Teacher forcing: [B, S], [B, T] -> logits [B, T, C]."""
        auxiliary = Auxiliary()
        return self.decode(
            target, self.encode(source, mask=source_mask, auxiliary=auxiliary), mask=mask, auxiliary=auxiliary
        )

    def make_state(self, batch: int = 1, capacity: int | None = None) -> State:
        """An empty state for the decoder; it belongs to one memory."""
        return self.decoder.make_state(batch, self.embedding.weight.device, capacity)

    def declares(self) -> Declaration:
        return self.spec.declares()
