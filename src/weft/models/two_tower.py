"""Two towers: an image and a text, each read by a model of its own, meet as vectors of one space.

    u = W_I h_class / |...|,   v = W_T h_end / |...|,   logits = exp(s) u v^T        (CLIP, Radford et al. 2021)

The image tower is a vision transformer with a class token; the text tower is a causal stack whose state at the end
token has seen the whole text. Axes: M images, N texts, P numbers of a shared vector.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal, Self

from pydantic import BeforeValidator, NonNegativeInt, PositiveInt, model_validator
from torch import Tensor, nn

from weft.foundation.errors import ShapeError, WeftError
from weft.models.output import Declaration, Output
from weft.models.part_specs import InitializationSpec, Share
from weft.models.position_specs import AnyPositionSpec, LearnedSpec
from weft.models.stack_spec import ModelSpec, StackSpec, arrange_call, as_mask, expect_tokens, seen_by
from weft.models.vision import VisionSpec, VisionTransformer
from weft.parts.auxiliary import Auxiliary
from weft.parts.embeddings import SequenceInput, TokenEmbedding
from weft.parts.masks import Mask
from weft.parts.outputs import Pool, ProjectionHead, SimilarityHead, pool_at_end
from weft.parts.stack import Stack
from weft.parts.state import State


class TextTowerSpec(StackSpec):
    """A causal stack over texts of up to `length` tokens, each pooled at its first token `end_token`.

    Without an `end_token`, at its token of the highest id, which the end token is in the first vocabularies of CLIP.
    """

    CAUSAL: ClassVar[bool] = True
    MASKS: ClassVar[tuple[str, ...]] = ()
    pool: ClassVar[Pool] = "last"  # the end token is the last of a text

    family: Literal["text-tower"] = "text-tower"
    vocabulary: PositiveInt = 256
    length: PositiveInt = 77
    end_token: NonNegativeInt | None = None
    positions: AnyPositionSpec = LearnedSpec()

    @model_validator(mode="after")
    def _end_is_known(self) -> Self:
        if self.end_token is not None and self.end_token >= self.vocabulary:
            raise ValueError(f"end_token {self.end_token} is not among the {self.vocabulary} of the vocabulary")
        return self

    def build(self) -> TextTower:
        """The model, with torch's own random weights."""
        embedding = TokenEmbedding(self.vocabulary, self.width - self.positions.own_width())
        entry = SequenceInput(self.positions.build_input(self.length, self.width), dropout=self.dropout)
        return TextTower(self, embedding, entry, self.build_stack(seen_by(causal=True)))

    def declares(self) -> Declaration:
        """Causal, but read at once: there is no state to continue from."""
        body = self.declare(self.family, length=self.length, vocabulary=self.vocabulary)
        return Declaration(**{**body.__dict__, "cached": False})


class TextTower(nn.Module):
    """`tower(tokens)`: hidden states of all tokens [B, T, D], and as `logits` each text's own, [B, D]."""

    def __init__(self, spec: TextTowerSpec, embedding: TokenEmbedding, input: SequenceInput, stack: Stack) -> None:
        super().__init__()
        self.spec, self.embedding, self.input, self.stack = spec, embedding, input, stack

    def forward(
        self,
        tokens: Tensor,
        positions: Tensor | None = None,
        mask: Mask | Tensor | None = None,
        state: State | None = None,
    ) -> Output:
        """[B, T] -> hidden [B, T, D], logits [B, D]; `mask`: padding, or a boolean [B, T] (real)."""
        if state is not None:
            raise WeftError("a text tower reads each text at once and keeps no state: call it without one")
        expect_tokens(tokens)
        mask = as_mask(mask)
        token_positions = arrange_call(tokens, positions, mask, None)
        auxiliary = Auxiliary(token_positions.real)
        x = self.input(self.embedding(tokens), token_positions)
        hidden = self.stack(x, token_positions, mask, auxiliary=auxiliary)
        end = self.spec.end_token
        return Output(hidden, lambda h: pool_at_end(h, tokens, token_positions, end), None, auxiliary.summary())

    def declares(self) -> Declaration:
        return self.spec.declares()


def _migrated(kind: type[StackSpec]) -> BeforeValidator:
    """A tower's tree is of its own version, as it was written."""
    return BeforeValidator(lambda given: kind.migrate(dict(given)) if isinstance(given, Mapping) else given)


class TwoTowerSpec(ModelSpec):
    """An image tower and a text tower, projected to vectors of `width` numbers."""

    family: Literal["two-tower"] = "two-tower"
    width: PositiveInt = 512
    image: Annotated[VisionSpec, _migrated(VisionSpec)] = VisionSpec(input_norm=True, patch_bias=False)
    text: Annotated[TextTowerSpec, _migrated(TextTowerSpec)] = TextTowerSpec()
    initialization: InitializationSpec = InitializationSpec()

    @model_validator(mode="after")
    def _images_have_no_classes(self) -> Self:
        if self.image.classes is not None or self.image.head_hidden is not None:
            raise ValueError("image.classes and image.head_hidden make answers of images alone: leave them out")
        return self

    @property
    def length(self) -> int:
        """Tokens of the longest text."""
        return self.text.length

    @property
    def dropout(self) -> Share:
        """The larger of both towers'."""
        return max(self.image.dropout, self.text.dropout)

    def build(self) -> TwoTowers:
        """The model, with torch's own random weights; `weft.build` initializes it."""
        return TwoTowers(self, self.image.build(), self.text.build())

    def declares(self) -> Declaration:
        """What the text tower does, whose tokens have an order in time; the image tower sees an image whole."""
        body = self.text.declares()
        return Declaration(**{**body.__dict__, "family": self.family})


class TwoTowers(nn.Module):
    """`model(images=images)` or `model(tokens)` give vectors, `model(tokens, images=images)` how well they match."""

    def __init__(self, spec: TwoTowerSpec, image: VisionTransformer, text: TextTower) -> None:
        super().__init__()
        self.spec, self.image, self.text = spec, image, text
        self.image_head = ProjectionHead(spec.image.width, spec.width)
        self.text_head = ProjectionHead(spec.text.width, spec.width)
        self.similarity = SimilarityHead()

    def forward(
        self,
        tokens: Tensor | None = None,
        positions: Tensor | None = None,
        mask: Mask | Tensor | None = None,
        state: State | None = None,
        images: Tensor | None = None,
    ) -> Output:
        """Tokens [N, T] or images [M, channels, height, width] -> unit vectors [N or M, P] as `logits`.

        Of both, the logits [M, N] of texts for each image; `hidden` is then the texts'.
        """
        if images is None:
            return self._read_texts(tokens, positions, mask, state)
        seen = self.image(images)
        pictured = Output(seen.hidden, lambda h: self.image_head(seen.head(h)), None, seen.auxiliary)
        if tokens is None:
            return pictured
        read = self._read_texts(tokens, positions, mask, state)
        return Output(
            read.hidden, lambda h: self.similarity(pictured.logits, read.head(h)), None, seen.auxiliary | read.auxiliary
        )

    def _read_texts(
        self, tokens: Tensor | None, positions: Tensor | None, mask: Mask | Tensor | None, state: State | None
    ) -> Output:
        if tokens is None:
            raise ShapeError("nothing to read: give tokens [N, T], images [M, channels, height, width], or both")
        read = self.text(tokens, positions, mask, state)
        return Output(read.hidden, lambda h: self.text_head(read.head(h)), None, read.auxiliary)

    def declares(self) -> Declaration:
        return self.spec.declares()
