"""Sources: what an encoder-decoder reads: tokens, vectors of numbers, series in patches, or the patches of an image.

Each kind knows its own builder, how its tensors enter the encoder, and how sources of any lengths become one tensor.
Shapes: S tokens of the source, C channels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal, Self

import torch
import torch.nn.functional as F
from pydantic import Field, PositiveInt, model_validator
from torch import Tensor, nn

from weft.foundation.errors import ShapeError, WeftError
from weft.foundation.spec import Spec
from weft.models.position_specs import GridSpec, GridTableSpec, PositionSpec
from weft.models.stack_spec import arrange_call, expect_tokens
from weft.models.vision import build_patches, patch_side
from weft.parts.embeddings import (
    GridInput,
    PatchEmbedding,
    SequenceInput,
    SeriesEmbedding,
    TokenEmbedding,
    VectorEmbedding,
)
from weft.parts.masks import Mask
from weft.parts.norms import Norm
from weft.parts.token_positions import TokenPositions

Entered = tuple[Tensor, TokenPositions]  # vectors [B, S, D], and where they stand


class TokenSourceSpec(Spec):
    """Tokens of the model's `vocabulary`, as many as its `length`."""

    kind: Literal["tokens"] = "tokens"

    def longest(self, length: int) -> int:
        """How many tokens a source may have, in a model of this `length`."""
        return length

    def tokens(self, length: int) -> int:
        """How many tokens the encoder sees of a source of `length`."""
        return length

    def build(self, width: int, vocabulary: int, scale: float) -> TokenEmbedding:
        return TokenEmbedding(vocabulary, width, scale)

    def build_input(
        self, positions: PositionSpec, length: int, width: int, norm: Norm | None, dropout: float
    ) -> nn.Module:
        """What follows the embedding: positions, norm, dropout."""
        return SequenceInput(positions.build_input(self.longest(length), width), norm=norm, dropout=dropout)

    def enter(self, embedding: nn.Module, source: Tensor, positions: Tensor | None, mask: Mask | None) -> Entered:
        """[B, S] -> [B, S, D]."""
        expect_tokens(source)
        token_positions = arrange_call(source, positions, mask, None)
        return embedding(source), token_positions


class VectorSourceSpec(Spec):
    """Vectors of `channels` numbers (frames of sound, bodies in motion), one token each, up to `length` of them."""

    kind: Literal["vectors"] = "vectors"
    channels: PositiveInt = 3
    length: PositiveInt = 1024

    @property
    def steps(self) -> int:
        """How many vectors are one token."""
        return 1

    def longest(self, length: int) -> int:
        return self.length

    def tokens(self, length: int) -> int:
        return length

    def build(self, width: int, vocabulary: int, scale: float) -> VectorEmbedding:
        return VectorEmbedding(self.channels, width)

    def build_input(
        self, positions: PositionSpec, length: int, width: int, norm: Norm | None, dropout: float
    ) -> nn.Module:
        return SequenceInput(positions.build_input(self.length, width), norm=norm, dropout=dropout)

    def enter(self, embedding: nn.Module, source: Tensor, positions: Tensor | None, mask: Mask | None) -> Entered:
        """[B, S, C] -> [B, S, D]; a series [B, S patch, C]; `positions` and `mask` count tokens."""
        if source.dim() != 3 or not source.is_floating_point():
            raise ShapeError(
                f"this model's source is {self.kind}: floating-point numbers [B, steps, {self.channels}], "
                f"but it was given {source.dtype} of shape {tuple(source.shape)}"
            )
        if source.shape[2] != self.channels:
            raise ShapeError(
                f"a source of {source.shape[2]} channels, but source.channels is {self.channels}: make them the same"
            )
        x = embedding(source)
        return x, arrange_call(x, positions, mask, None)

    def fill(self, values: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor | None]:
        """Rows [B, T, C], of which `lengths` [B] steps are real, as whole tokens; and which are real, None if all are.

        What follows a row's real steps must be 0: it fills the row's last patch.
        """
        missing = -values.shape[1] % self.steps
        whole = F.pad(values, (0, 0, 0, missing)) if missing else values
        counts = torch.div(lengths + self.steps - 1, self.steps, rounding_mode="floor")
        real = torch.arange(whole.shape[1] // self.steps, device=values.device) < counts[:, None]
        return whole, None if bool(real.all()) else real

    def collate(self, rows: Sequence[Any]) -> tuple[Tensor, Tensor | None]:
        """Sources [T, C] of any lengths as `fill` gives them."""
        tensors = [torch.as_tensor(row) for row in rows]
        for number, row in enumerate(tensors):
            if row.dim() != 2 or row.shape[1] != self.channels or not len(row) or not row.is_floating_point():
                raise WeftError(
                    f"source {number} is {row.dtype} of shape {tuple(row.shape)}, but this model reads {self.kind}: "
                    f"give floating-point numbers [steps, {self.channels}]"
                )
        lengths = torch.tensor([len(row) for row in tensors], device=tensors[0].device)
        return self.fill(nn.utils.rnn.pad_sequence(tensors, batch_first=True), lengths)


class SeriesSourceSpec(VectorSourceSpec):
    """Series of `channels` numbers per step; a token is `patch` steps, up to `length` tokens."""

    kind: Literal["series"] = "series"  # type: ignore[assignment]
    patch: PositiveInt = 8

    @property
    def steps(self) -> int:
        return self.patch

    def build(self, width: int, vocabulary: int, scale: float) -> SeriesEmbedding:
        return SeriesEmbedding(self.patch, self.channels, width)


class PatchSourceSpec(Spec):
    """Images of `image` x `image` pixels in patches of `patch`, after a `stem` of convolutions where there is one.

    `grid` says how patches know where they are, in place of the encoder's positions.
    """

    kind: Literal["patches"] = "patches"
    image: PositiveInt = 32
    patch: PositiveInt = 8
    channels: PositiveInt = 3
    stem: tuple[PositiveInt, ...] = ()
    grid: GridSpec = GridTableSpec()

    @model_validator(mode="after")
    def _images_fit(self) -> Self:
        patch_side(self.image, self.stem, self.patch)
        return self

    @property
    def side(self) -> int:
        """Patches along one side of the image."""
        return patch_side(self.image, self.stem, self.patch)

    def longest(self, length: int) -> int:
        return self.side**2

    def tokens(self, length: int) -> int:
        return self.side**2

    def build(self, width: int, vocabulary: int, scale: float) -> PatchEmbedding:
        return build_patches(self.patch, self.channels, width, self.stem)

    def build_input(
        self, positions: PositionSpec, length: int, width: int, norm: Norm | None, dropout: float
    ) -> nn.Module:
        return GridInput(self.grid.build((self.side, self.side), width, 0), norm, dropout)

    def enter(self, embedding: nn.Module, source: Tensor, positions: Tensor | None, mask: Mask | None) -> Entered:
        """[B, C, height, width] -> [B, h w, D]; other sizes resize the grid."""
        if positions is not None or (mask is not None and any(leaf.marks_padding for leaf in mask.leaves())):
            raise WeftError("an image has its grid for positions, and no padding: leave positions and mask out")
        x, grid = embedding(source)
        return x, TokenPositions.run(0, x.shape[1], x.device, grid)

    def collate(self, rows: Sequence[Any]) -> tuple[Tensor, None]:
        """Images [B, C, height, width], or a list of images of one size."""
        images = rows if isinstance(rows, Tensor) else torch.stack([torch.as_tensor(row) for row in rows])
        return images, None


SourceSpec = Annotated[
    TokenSourceSpec | VectorSourceSpec | SeriesSourceSpec | PatchSourceSpec, Field(discriminator="kind")
]
