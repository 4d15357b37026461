"""Encoder: every token sees every other; one answer per sequence (class token, mean, last) or per token.

Over tokens (BERT), words with their characters, or numeric vectors (bodies in motion, sensors, log-mel frames).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, PositiveInt, model_validator
from torch import Tensor, nn

from weft.foundation.errors import ShapeError, WeftError
from weft.foundation.spec import Spec
from weft.models.output import Declaration, Output
from weft.models.part_specs import ActivationName, NormSpec
from weft.models.stack_spec import StackSpec, arrange_call, as_mask, expect_tokens, seen_by
from weft.parts.auxiliary import Auxiliary
from weft.parts.embeddings import ClassToken, SegmentEmbedding, SequenceInput, TokenEmbedding, VectorEmbedding
from weft.parts.masks import BlockSparse, Graph, Mask, Prefix
from weft.parts.ngrams import NgramSkip
from weft.parts.outputs import MaskedLanguageHead, Pool, PooledHead, TokenHead
from weft.parts.stack import Stack
from weft.parts.state import State
from weft.parts.word_embedding import WordEmbedding

NEIGHBORS = 3  # tokens that n-grams reach over to each side, its own included


class TokensSpec(Spec):
    """Tokens in: a vocabulary, and segments (sentence A, sentence B) where there are any."""

    kind: Literal["tokens"] = "tokens"
    vocabulary: PositiveInt = 256
    segments: PositiveInt | None = None

    def build(self, width: int) -> nn.Module:
        return TokenEmbedding(self.vocabulary, width)


class WordsSpec(Spec):
    """Words in, each with its characters, of which it shows `longest` at most; `kernel` of them are seen at once."""

    kind: Literal["words"] = "words"
    vocabulary: PositiveInt = 256
    characters: PositiveInt = 128
    character_width: PositiveInt = 32
    kernel: PositiveInt = 3
    longest: PositiveInt = 16
    segments: None = None

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.kernel % 2 == 0:
            raise ValueError(f"input.kernel {self.kernel} has no center: choose an odd one")
        return self

    def build(self, width: int) -> nn.Module:
        return WordEmbedding(self.vocabulary, self.characters, width, self.character_width, self.kernel, self.longest)


class VectorsSpec(Spec):
    """Vectors of `channels` numbers in."""

    kind: Literal["vectors"] = "vectors"
    channels: PositiveInt = 3
    segments: None = None

    def build(self, width: int) -> nn.Module:
        return VectorEmbedding(self.channels, width)


class PooledSpec(Spec):
    """One answer per sequence; `hidden` puts a layer before it; without `classes` the pooled vector is the answer."""

    EACH_TOKEN: ClassVar[bool] = False

    kind: Literal["pooled"] = "pooled"
    pool: Pool = "first"
    classes: PositiveInt | None = None
    hidden: PositiveInt | None = None
    activation: ActivationName | Literal["tanh"] = "tanh"

    def build(self, width: int, vocabulary: int | None, norm: NormSpec) -> nn.Module:
        return PooledHead(width, self.classes, self.pool, self.hidden, self.activation)


class PerTokenSpec(Spec):
    """One answer per token."""

    EACH_TOKEN: ClassVar[bool] = True

    kind: Literal["per-token"] = "per-token"
    classes: PositiveInt = 2

    def build(self, width: int, vocabulary: int | None, norm: NormSpec) -> nn.Module:
        return TokenHead(width, self.classes)


class MaskedLanguageSpec(Spec):
    """A token of the vocabulary for each token: masked ones are filled in. Its norm is of the model's kind."""

    EACH_TOKEN: ClassVar[bool] = True

    kind: Literal["masked-language"] = "masked-language"
    activation: ActivationName = "gelu"
    classes: None = None

    def build(self, width: int, vocabulary: int | None, norm: NormSpec) -> nn.Module:
        assert vocabulary is not None, "checked by EncoderSpec"
        return MaskedLanguageHead(width, vocabulary, norm.build(width), self.activation)


class NgramsSpec(Spec):
    """A skip from n-grams of the input to the answer, in a table of `entries` rows; fitted when a training begins."""

    entries: PositiveInt = 65_537

    def build(self, answer: PooledSpec | PerTokenSpec) -> NgramSkip:
        assert answer.classes is not None, "checked by EncoderSpec"
        return NgramSkip(self.entries, answer.classes, answer.EACH_TOKEN)


InputSpec = Annotated[TokensSpec | WordsSpec | VectorsSpec, Field(discriminator="kind")]
AnswerSpec = Annotated[PooledSpec | PerTokenSpec | MaskedLanguageSpec, Field(discriminator="kind")]


class EncoderSpec(StackSpec):
    """An encoder of sequences of up to `length`; `class_token` puts a learned vector before each.

    `ngrams` blends in what single n-grams of tokens or words say about the answer, beside the blocks.
    """

    MASKS: ClassVar[tuple[str, ...]] = (*StackSpec.MASKS, "graph")

    family: Literal["encoder"] = "encoder"
    input: InputSpec = TokensSpec()
    length: PositiveInt = 256
    class_token: bool = False
    input_norm: bool = False
    output: AnswerSpec = PooledSpec()
    ngrams: NgramsSpec | None = None

    @model_validator(mode="after")
    def _graph_fits(self) -> Self:
        if self.class_token and any(getattr(getattr(m, "mask", None), "kind", None) == "graph" for m in self.mixer):
            raise ValueError("a graph has no edge for the class token: set class_token to false and pool the mean")
        return self

    @model_validator(mode="after")
    def _ngrams_fit(self) -> Self:
        if self.ngrams is None:
            return self
        if self.input.kind == "vectors" or self.output.classes is None:
            raise ValueError("ngrams say of tokens or words which class they are of: leave them out without these")
        if any(getattr(mixer, "mask", None) is not None for mixer in self.mixer):
            raise ValueError("ngrams see the neighbors of a token, which mixer.mask may hide: leave one of them out")
        return self

    def build(self) -> Encoder:
        """The model, with torch's own random weights; `weft.build` initializes it."""
        own = self.width - self.positions.own_width()
        extra = 1 if self.class_token else 0
        segments = self.input.segments
        entry = SequenceInput(
            self.positions.build_input(self.length + extra, self.width),
            ClassToken(own) if self.class_token else None,
            None if segments is None else SegmentEmbedding(segments, own),
            self.norm.build(self.width) if self.input_norm else None,
            self.dropout,
        )
        stack = self.build_stack(seen_by(causal=False))
        head = self.output.build(self.width, self._vocabulary(), self.norm)
        ngrams = None
        if self.ngrams is not None and not isinstance(self.output, MaskedLanguageSpec):
            ngrams = self.ngrams.build(self.output)
        return Encoder(self, self.input.build(own), entry, stack, head, ngrams)

    def _vocabulary(self) -> int | None:
        return None if isinstance(self.input, VectorsSpec) else self.input.vocabulary

    def declares(self) -> Declaration:
        """Not causal, no cache, and what the body adds; n-grams are ordered, and reach to the neighbors."""
        body = self.declare(self.family, length=self.length, vocabulary=self._vocabulary())
        if self.ngrams is None:
            return body
        reach = None if body.reach is None else max(body.reach, NEIGHBORS)
        return replace(body, order_free=False, reach=reach)

    def _positions_fit(self) -> None:
        super()._positions_fit()
        if self.output.kind == "masked-language" and (self.input.kind != "tokens" or self.positions.own_width()):
            raise ValueError(
                "output.kind masked-language reads with the embedding of tokens: use input.kind tokens, and positions "
                "that are not concatenated"
            )


class Encoder(nn.Module):
    """`model(tokens)`, `model(words)` or `model(vectors)`: hidden states of all tokens, and the answer as `logits`."""

    def __init__(
        self,
        spec: EncoderSpec,
        embedding: nn.Module,
        input: SequenceInput,
        stack: Stack,
        head: nn.Module,
        ngrams: NgramSkip | None = None,
    ) -> None:
        super().__init__()
        self.spec, self.embedding, self.input, self.stack, self.head = spec, embedding, input, stack, head
        self.ngrams = ngrams

    def forward(
        self,
        tokens: Tensor,
        positions: Tensor | None = None,
        mask: Mask | Tensor | None = None,
        state: State | None = None,
        segments: Tensor | None = None,
    ) -> Output:
        """[B, T], [B, T, 1 + L] or [B, T, C] -> hidden [B, (1 +) T, D], logits [B, classes] or [B, T, classes or C]."""
        if state is not None:
            raise WeftError("an encoder sees all tokens at once and keeps no state: call it without one")
        if self.spec.input.kind == "tokens":
            expect_tokens(tokens)
        elif tokens.dim() != 3:
            what = "vectors are [B, T, C]" if self.spec.input.kind == "vectors" else "words are [B, T, 1 + L]"
            raise ShapeError(f"{what}, but these have shape {tuple(tokens.shape)}")
        mask = as_mask(mask)
        token_positions = own_positions = arrange_call(tokens, positions, mask, None)
        if self.spec.class_token:
            self._expect_no_places(mask)
            token_positions = token_positions.after(1)
        auxiliary = Auxiliary(token_positions.real)
        hidden = self.stack(
            self.input(self.embedding(tokens), token_positions, segments), token_positions, mask, auxiliary=auxiliary
        )

        def answer(hidden: Tensor) -> Tensor:
            own = hidden[:, 1:] if self.spec.class_token and self.spec.output.EACH_TOKEN else hidden
            logits: Tensor = self.head(own, token_positions, self.embedding)
            if self.ngrams is None or self.training:
                return logits
            return self.ngrams(logits, tokens, own_positions)

        return Output(hidden, answer, None, auxiliary.summary())

    def _expect_no_places(self, mask: Mask | None) -> None:
        """Refuse masks that name tokens by their numbers: with a class token these begin at 1."""
        for leaf in mask.leaves() if mask is not None else ():
            if isinstance(leaf, Graph):
                raise WeftError("a graph has no edge for the class token: set class_token to false and pool the mean")
            if isinstance(leaf, (Prefix, BlockSparse)):
                raise WeftError(
                    f"{leaf!r} counts tokens from 0, where the class token stands: set class_token to false, or give "
                    "the mask to the model's spec"
                )

    def declares(self) -> Declaration:
        return self.spec.declares()
