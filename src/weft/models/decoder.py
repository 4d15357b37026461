"""Decoder: a language model. Embedding [C, D], masked blocks, projection [D, C].

p(c | s_1, s_2, ...) for every next symbol at once, trained by masking; its mixer may be attention, linear attention,
recurrence or convolution, so the RNN language model is one of its presets.
"""

from __future__ import annotations

from functools import partial
from typing import ClassVar, Literal

from pydantic import PositiveInt
from torch import Tensor, nn

from weft.models.output import Declaration, Output
from weft.models.part_specs import HeadSpec, TiedHeadSpec
from weft.models.stack_spec import StackSpec, arrange_call, as_mask, expect_tokens, seen_by
from weft.parts.auxiliary import Auxiliary
from weft.parts.embeddings import SequenceInput, TokenEmbedding
from weft.parts.masks import Mask
from weft.parts.outputs import CappedHead, LanguageHead, TiedHead
from weft.parts.stack import Stack
from weft.parts.state import State


class DecoderSpec(StackSpec):
    """A language model over `vocabulary` tokens and texts of up to `length`."""

    CAUSAL: ClassVar[bool] = True
    MASKS: ClassVar[tuple[str, ...]] = (*StackSpec.MASKS, "prefix", "graph")

    family: Literal["decoder"] = "decoder"
    vocabulary: PositiveInt = 256
    length: PositiveInt = 256
    embedding_scale: float = 1.0
    head: HeadSpec = TiedHeadSpec()

    def build(self) -> Decoder:
        """The model, with torch's own random weights; `weft.build` initializes it."""
        own = self.width - self.positions.own_width()
        embedding = TokenEmbedding(self.vocabulary, own, self.embedding_scale)
        position = self.positions.build_input(self.length, self.width)
        entry = SequenceInput(position, dropout=self.dropout)
        stack = self.build_stack(seen_by(causal=True))
        return Decoder(self, embedding, entry, stack, self.head.build(self.width, self.vocabulary))

    def declares(self) -> Declaration:
        """Causal, cached, and what the body adds."""
        return self.declare(self.family, length=self.length, vocabulary=self.vocabulary)

    def _positions_fit(self) -> None:
        super()._positions_fit()
        if self.positions.own_width() and self.head.kind == "tied":
            raise ValueError("positions.join concatenate makes the embedding narrower than width: use head.kind linear")


class Decoder(nn.Module):
    """`model(tokens)` trains; with `state` the same call prefills and decodes."""

    def __init__(
        self,
        spec: DecoderSpec,
        embedding: TokenEmbedding,
        input: SequenceInput,
        stack: Stack,
        head: LanguageHead | TiedHead | CappedHead,
    ) -> None:
        super().__init__()
        self.spec, self.embedding, self.input, self.stack, self.head = spec, embedding, input, stack, head

    def forward(
        self,
        tokens: Tensor,
        positions: Tensor | None = None,
        mask: Mask | Tensor | None = None,
        state: State | None = None,
    ) -> Output:
        """[B, T] -> hidden [B, T, D], logits [B, T, C]; `mask`: padding, documents, or a boolean [B, T] (real)."""
        expect_tokens(tokens)
        mask = as_mask(mask)
        token_positions = arrange_call(tokens, positions, mask, state)
        auxiliary = Auxiliary(token_positions.real)
        x = self.input(self.embedding(tokens), token_positions)
        hidden = self.stack(x, token_positions, mask, state, auxiliary=auxiliary)
        return Output(hidden, partial(self.head, embedding=self.embedding), state, auxiliary.summary())

    def make_state(self, batch: int = 1, capacity: int | None = None) -> State:
        """An empty state: growing, or refusing more than `capacity` tokens."""
        return self.stack.make_state(batch, self.embedding.device, capacity)

    def declares(self) -> Declaration:
        return self.spec.declares()
