"""Image and text in one sequence: patches are prefix tokens that all see; the text after them is causal."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import ClassVar, Literal, Self

import torch
from pydantic import PositiveInt, model_validator
from torch import Tensor, nn

from weft.foundation.errors import ShapeError
from weft.models.output import Declaration, Output
from weft.models.part_specs import AttentionSpec, HeadSpec, TiedHeadSpec
from weft.models.stack_spec import StackSpec, arrange_call, as_mask, expect_tokens
from weft.models.vision import build_patches, patch_side
from weft.parts.auxiliary import Auxiliary
from weft.parts.embeddings import PatchEmbedding, SequenceInput, TokenEmbedding
from weft.parts.masks import Mask, Prefix
from weft.parts.outputs import CappedHead, LanguageHead, TiedHead
from weft.parts.position_counter import PositionCounter
from weft.parts.stack import Stack
from weft.parts.state import State
from weft.parts.token_positions import SHARED, TokenPositions


class ImageTextSpec(StackSpec):
    """A decoder whose first (image / patch)^2 tokens are an image; text of up to `length` tokens follows."""

    CAUSAL: ClassVar[bool] = True
    MASKS: ClassVar[tuple[str, ...]] = ()

    family: Literal["image-text"] = "image-text"
    vocabulary: PositiveInt = 256
    length: PositiveInt = 64
    image: PositiveInt = 32
    patch: PositiveInt = 8
    channels: PositiveInt = 3
    stem: tuple[PositiveInt, ...] = ()
    head: HeadSpec = TiedHeadSpec()

    @model_validator(mode="after")
    def _images_fit(self) -> Self:
        patch_side(self.image, self.stem, self.patch)
        if any(mixer.kind == "attention" and mixer.window is not None for mixer in self.mixer):
            raise ValueError("mixer.window would hide the image from later text: leave it out of an image-text decoder")
        if not all(isinstance(mixer, AttentionSpec) for mixer in self.mixer):
            raise ValueError("mixer must be attention in an image-text decoder: text sees the whole image before it")
        if self.positions.own_width():
            raise ValueError("positions.join must be add in an image-text decoder")
        return self

    @property
    def prefix(self) -> int:
        """How many tokens the image is."""
        return patch_side(self.image, self.stem, self.patch) ** 2

    def build(self) -> ImageTextDecoder:
        """The model, with torch's own random weights; `weft.build` initializes it."""
        embedding = TokenEmbedding(self.vocabulary, self.width)
        patches = build_patches(self.patch, self.channels, self.width, self.stem)
        position = self.positions.build_input(self.prefix + self.length, self.width)
        return ImageTextDecoder(
            self,
            patches,
            embedding,
            SequenceInput(position, dropout=self.dropout),
            self.build_stack(Prefix(self.prefix)),
            self.head.build(self.width, self.vocabulary),
        )

    def declares(self) -> Declaration:
        """Text is causal and cached; the image is a prefix that all see."""
        return self.declare(self.family, length=self.length, vocabulary=self.vocabulary, prefix=self.prefix)


class ImageTextDecoder(nn.Module):
    """`model(tokens, images=images)`; with a state, images come with the first call only."""

    def __init__(
        self,
        spec: ImageTextSpec,
        patches: PatchEmbedding,
        embedding: TokenEmbedding,
        input: SequenceInput,
        stack: Stack,
        head: LanguageHead | TiedHead | CappedHead,
    ) -> None:
        super().__init__()
        self.spec, self.patches, self.embedding, self.input = spec, patches, embedding, input
        self.stack, self.head = stack, head

    def forward(
        self,
        tokens: Tensor,
        positions: Tensor | None = None,
        mask: Mask | Tensor | None = None,
        state: State | None = None,
        images: Tensor | None = None,
    ) -> Output:
        """[B, T] and [B, channels, height, width] -> hidden [B, T, D], logits [B, T, C] of the text alone.

        `positions` count from the text's first token. Text without an image stands where it would with one. Of several
        texts in one row, packed as documents, each sees the image and itself.
        """
        expect_tokens(tokens)
        mask = as_mask(mask)
        P = self.spec.prefix
        counter = PositionCounter(tokens.shape[0], tokens.device, origin=P) if state is None else state.counter
        begun = counter.begun
        if positions is not None:
            positions = torch.where(positions >= 0, positions + P, positions)
        token_positions = arrange_call(tokens, positions, mask, state, counter)
        x = self.embedding(tokens)
        if images is not None:
            if state is not None and token_positions.documents is not None:
                raise ShapeError("packed documents and a state: give each text a row of its own")
            x, token_positions = self._with_image(x, images, token_positions, begun)
        auxiliary = Auxiliary(token_positions.real)
        hidden = self.stack(self.input(x, token_positions), token_positions, mask, state, auxiliary=auxiliary)
        text = hidden if images is None else hidden[:, P:]
        return Output(text, partial(self.head, embedding=self.embedding), state, auxiliary.summary())

    def _with_image(
        self, x: Tensor, images: Tensor, token_positions: TokenPositions, begun: bool
    ) -> tuple[Tensor, TokenPositions]:
        P = self.spec.prefix
        if begun:
            raise ShapeError("this state has seen its beginning already: give the image with the first call only")
        cells, _ = self.patches(images)
        if cells.shape[:2] != (x.shape[0], P):
            raise ShapeError(
                f"{cells.shape[0]} images of {cells.shape[1]} patches for {x.shape[0]} texts: this model takes one "
                f"image of {P} patches a text; resize images to {self.spec.image} x {self.spec.image}"
            )
        if token_positions.plain and token_positions.start == P:
            return torch.cat((cells, x), 1), TokenPositions.run(0, P + token_positions.length, token_positions.device)
        text = token_positions.positions.expand(x.shape[0], -1)
        image = torch.arange(P, device=text.device).expand(x.shape[0], -1)
        documents = token_positions.documents
        if documents is not None:
            documents = torch.cat((torch.full_like(image, SHARED), documents.expand(x.shape[0], -1)), 1)
        given = torch.cat((image, text), 1)
        joined = replace(token_positions, length=P + token_positions.length, given=given, documents=documents)
        return torch.cat((cells, x), 1), replace(joined, ids=None, packed=False)

    def make_state(self, batch: int = 1, capacity: int | None = None) -> State:
        """An empty state; `capacity` counts text and image tokens."""
        return self.stack.make_state(batch, self.embedding.device, capacity, origin=self.spec.prefix)

    def declares(self) -> Declaration:
        return self.spec.declares()
