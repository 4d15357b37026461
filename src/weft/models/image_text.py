"""Image and text in one sequence: patches are prefix tokens that all see; the text after them is causal."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

import torch
from pydantic import PositiveInt, model_validator
from torch import Tensor, nn

from weft.foundation.errors import ShapeError
from weft.models.output import Declaration, Output
from weft.models.specs import AttentionSpec, HeadSpec, TiedHeadSpec
from weft.models.stacks import BodySpec, arrange_call, as_mask, expect_tokens
from weft.parts.embeddings import ConvolutionStem, PatchEmbedding, SequenceInput, TokenEmbedding
from weft.parts.masks import Mask, Prefix
from weft.parts.notes import Notes
from weft.parts.outputs import LanguageHead, TiedHead
from weft.parts.places import Places
from weft.parts.stack import Stack
from weft.parts.state import State


class ImageTextSpec(BodySpec):
    """A decoder whose first (image / patch)^2 tokens are an image; text of up to `length` tokens follows."""

    CAUSAL: ClassVar[bool] = True

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
        size = self.image
        for _ in self.stem:
            size = (size + 1) // 2
        if size % self.patch:
            raise ValueError(f"image {self.image} (after the stem {size}) does not divide into patch {self.patch}")
        if not all(isinstance(mixer, AttentionSpec) for mixer in self.mixer):
            raise ValueError("mixer must be attention in an image-text decoder: text sees the whole image before it")
        if self.positions.own_width():
            raise ValueError("positions.join must be add in an image-text decoder")
        return self

    @property
    def prefix(self) -> int:
        """How many tokens the image is."""
        size = self.image
        for _ in self.stem:
            size = (size + 1) // 2
        return (size // self.patch) ** 2

    def build(self) -> ImageTextDecoder:
        """The model, with torch's own random weights; `weft.build` initialises it."""
        embedding = TokenEmbedding(self.vocabulary, self.width)
        stem = ConvolutionStem(self.channels, self.stem) if self.stem else None
        patches = PatchEmbedding(self.patch, self.stem[-1] if self.stem else self.channels, self.width, stem)
        position = self.positions.build_input(self.prefix + self.length, self.width)
        return ImageTextDecoder(
            self,
            patches,
            embedding,
            SequenceInput(position, dropout=self.dropout),
            self.build_stack(Prefix(self.prefix)),
            self.head.build(self.width, self.vocabulary, embedding),
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
        head: LanguageHead | TiedHead,
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

        `positions` count from the text's first token. Text without an image stands where it would with one.
        """
        expect_tokens(tokens)
        mask = as_mask(mask)
        P = self.spec.prefix
        begun = state is not None and not (isinstance(state.clock.next, int) and state.clock.next == 0)
        if positions is not None:
            positions = positions + P
        places = arrange_call(tokens, positions, mask, state)
        x = self.embedding(tokens)
        if images is not None:
            x, places = self._with_image(x, images, places, begun, positions)
        elif not begun and positions is None:
            places = _moved(places, P)
        notes = Notes(places.real)
        hidden = self.stack(self.input(x, places), places, mask, state, notes=notes)
        text = hidden if images is None else hidden[:, P:]
        return Output(text, self.head, state, notes.summary())

    def _with_image(
        self, x: Tensor, images: Tensor, places: Places, begun: bool, positions: Tensor | None
    ) -> tuple[Tensor, Places]:
        P = self.spec.prefix
        if begun:
            raise ShapeError("this state has seen its beginning already: give the image with the first call only")
        cells, _ = self.patches(images)
        if cells.shape[:2] != (x.shape[0], P):
            raise ShapeError(
                f"{cells.shape[0]} images of {cells.shape[1]} patches for {x.shape[0]} texts: this model takes one "
                f"image of {P} patches a text; resize images to {self.spec.image} x {self.spec.image}"
            )
        if positions is not None:
            places = Places.of(places.positions - P * (places.positions >= 0))
        return torch.cat((cells, x), 1), places.after(P)

    def make_state(self, batch: int = 1, capacity: int | None = None) -> State:
        """An empty state; `capacity` counts text and image tokens."""
        return self.stack.make_state(batch, self.head.weight.device, capacity)

    def declares(self) -> Declaration:
        """What this model promises."""
        return self.spec.declares()


def _moved(places: Places, by: int) -> Places:
    """The same tokens, `by` positions later."""
    if places.plain and places.start is not None:
        return Places.run(places.start + by, places.length, places.device)
    positions = places.positions
    return Places.of(positions + by * (positions >= 0), places.documents)
