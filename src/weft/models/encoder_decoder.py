"""Encoder-decoder: an encoder sees the whole source; each decoder layer has a causal mixer, attention to all encoder
states, and an MLP (Vaswani et al. 2017, T5).

    memory M = encoder(source) [B, S, D_M];   p(y_t | source, y_1 .. y_(t-1)) = softmax(W_C decoder(y_1 .. y_(t-1), M))

The source is tokens, vectors, a series or an image; attention, recurrence, convolution or none mix on either side.
"""

from __future__ import annotations

from functools import partial
from typing import ClassVar, Literal, Self

from pydantic import PositiveInt, model_validator
from torch import Tensor, nn

from weft.foundation.errors import SpecError
from weft.foundation.spec import Spec
from weft.models.output import Declaration, Memory, Output
from weft.models.part_specs import AttentionSpec, FeedForwardSpec, HeadSpec, LayerCount, TiedHeadSpec
from weft.models.position_specs import AnyPositionSpec, NoPositionsSpec
from weft.models.sources import SourceSpec, TokenSourceSpec
from weft.models.stack_spec import MixerPattern, StackSpec, arrange_call, as_mask, expect_tokens, seen_by
from weft.parts.auxiliary import Auxiliary
from weft.parts.embeddings import SequenceInput, TokenEmbedding
from weft.parts.masks import Mask
from weft.parts.norms import Norm
from weft.parts.outputs import CappedHead, LanguageHead, TiedHead
from weft.parts.stack import Stack
from weft.parts.state import State


class EncoderSideSpec(Spec):
    """Where the encoder differs from the decoder; what is not given is the decoder's."""

    width: PositiveInt | None = None
    mixer: MixerPattern | None = None
    feedforward: FeedForwardSpec | None = None
    positions: AnyPositionSpec | None = None


class _ImageStackSpec(StackSpec):
    """A stack over the grid of an image's patches: a grid convolution may mix them."""

    SKIPS: ClassVar[tuple[str, ...]] = ()


class EncoderDecoderSpec(StackSpec):
    """`layers` encoder blocks, `decoder_layers` decoder blocks (as many if not given).

    `source` is what the encoder reads; `encoder` says where it differs from the decoder, whose fields are those of the
    spec itself. `cross` is the attention of each decoder block to the encoder's states: like the mixer's first
    attention if not given, or of 4 heads where the mixer has none.

    `vocabulary` is the source's and, without `target_vocabulary`, the target's too: both then share one embedding, if
    encoder and decoder are of one width. Of other sources than tokens it is the target's alone. `input_norm` puts a
    norm before the first block of each (BART).
    """

    CAUSAL: ClassVar[bool] = True

    family: Literal["encoder-decoder"] = "encoder-decoder"
    source: SourceSpec = TokenSourceSpec()
    vocabulary: PositiveInt = 256
    target_vocabulary: PositiveInt | None = None
    length: PositiveInt = 256
    decoder_layers: LayerCount | None = None
    encoder: EncoderSideSpec = EncoderSideSpec()
    cross: AttentionSpec | None = None
    embedding_scale: float = 1.0
    input_norm: bool = False
    head: HeadSpec = TiedHeadSpec()

    @model_validator(mode="after")
    def _both_sides_fit(self) -> Self:
        if self.positions.own_width() and self.head.kind == "tied":
            raise ValueError("positions.join concatenate makes the embedding narrower than width: use head.kind linear")
        if self.target_vocabulary is not None and self.source.kind != "tokens":
            raise ValueError(f"source {self.source.kind} has no vocabulary: give the target's as vocabulary alone")
        for name in ("window", "mask", "rotary"):
            if getattr(self.cross, name, None) is not None:
                raise ValueError(f"cross-attention sees all of the source, wherever it stands: leave cross.{name} out")
        clash = self.cross_attention().clashes(self.width, causal=False)
        if clash is not None:
            raise ValueError(clash.replace("mixer.", "cross."))
        try:
            encoder = self.encoder_stack()
        except SpecError as error:
            raise ValueError(f"in the encoder, {str(error).partition(': ')[2]}") from None
        if self.source.kind == "patches" and encoder.positions.nature() == "absolute":
            raise ValueError("positions of image patches are set by source.grid: leave encoder.positions out")
        return self

    def encoder_stack(self) -> StackSpec:
        """The encoder's body: the decoder's fields, but for what `encoder` says; images have a grid for positions."""
        own = {name: value for name, value in self.encoder if value is not None}
        image = self.source.kind == "patches"
        if image:
            own.setdefault("positions", NoPositionsSpec())
        shared = {name: getattr(self, name) for name in StackSpec.model_fields}
        return (_ImageStackSpec if image else StackSpec)(**{**shared, **own})

    def cross_attention(self) -> AttentionSpec:
        """The attention of each decoder block to the memory."""
        mixers = (mixer for mixer in self.mixer if isinstance(mixer, AttentionSpec))
        return self.cross or next(mixers, AttentionSpec())

    def build(self) -> EncoderDecoder:
        """The model, with torch's own random weights; `weft.build` initializes it."""
        encoder = self.encoder_stack()
        source_width, target_width = (body.width - body.positions.own_width() for body in (encoder, self))
        embedding = self.source.build(source_width, self.vocabulary, self.embedding_scale)
        shared = self.source.kind == "tokens" and self.target_vocabulary is None and source_width == target_width
        targets = self.target_vocabulary or self.vocabulary
        target_embedding = None if shared else TokenEmbedding(targets, target_width, self.embedding_scale)
        cross = partial(self.cross_attention().build_cross, self.width, encoder.width)
        return EncoderDecoder(
            self,
            embedding,
            self.source.build_input(
                encoder.positions, self.length, encoder.width, self._build_input_norm(encoder.width), self.dropout
            ),
            encoder.build_stack(seen_by(causal=False), causal=False),
            target_embedding,
            SequenceInput(
                self.positions.build_input(self.length, self.width),
                norm=self._build_input_norm(self.width),
                dropout=self.dropout,
            ),
            self.build_stack(seen_by(causal=True), self.decoder_depth, cross),
            self.head.build(self.width, targets),
        )

    @property
    def decoder_depth(self) -> int:
        """Number of decoder blocks."""
        return self.layers if self.decoder_layers is None else self.decoder_layers

    def _build_input_norm(self, width: int) -> Norm | None:
        return self.norm.build(width) if self.input_norm else None

    def declares(self) -> Declaration:
        """A causal, cached decoder that sees all of the source."""
        return self.declare(
            self.family,
            self.decoder_depth,
            self.length,
            causal=True,
            vocabulary=self.target_vocabulary or self.vocabulary,
            seq2seq=True,
            source_length=self.source.longest(self.length),
        )


class EncoderDecoder(nn.Module):
    """`model(source, target)` trains; `encode` once and `decode` with a state to generate.

    `embedding` is the source's, and the target's where `target_embedding` is None.
    """

    def __init__(
        self,
        spec: EncoderDecoderSpec,
        embedding: nn.Module,
        source_input: nn.Module,
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
        """Source tokens [B, S], vectors [B, S, C], a series [B, S patch, C] or images -> memory [B, S, D_M]."""
        mask = as_mask(mask)
        x, token_positions = self.spec.source.enter(self.embedding, source, positions, mask)
        if auxiliary is not None:
            auxiliary.real = token_positions.real
        hidden = self.encoder(self.source_input(x, token_positions), token_positions, mask, auxiliary=auxiliary)
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
        """Teacher forcing: a source as `encode` takes it, [B, T] -> logits [B, T, C]."""
        auxiliary = Auxiliary()
        return self.decode(
            target, self.encode(source, mask=source_mask, auxiliary=auxiliary), mask=mask, auxiliary=auxiliary
        )

    def make_state(self, batch: int = 1, capacity: int | None = None) -> State:
        """An empty state for the decoder; it belongs to one memory."""
        return self.decoder.make_state(batch, next(self.embedding.parameters()).device, capacity)

    def declares(self) -> Declaration:
        return self.spec.declares()
