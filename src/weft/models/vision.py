"""Vision transformer: an image as a sequence of patches, no mask; class token or average pool.

Dosovitskiy et al. 2021.
"""

from __future__ import annotations

from typing import ClassVar, Literal, Self

from pydantic import NonNegativeInt, PositiveInt, model_validator
from torch import Tensor, nn

from weft.foundation.errors import WeftError
from weft.models.output import Declaration, Output
from weft.models.part_specs import ActivationName
from weft.models.position_specs import AnyPositionSpec, GridSpec, GridTableSpec, NoPositionsSpec
from weft.models.stack_spec import StackSpec, as_mask, seen_by
from weft.parts.auxiliary import Auxiliary
from weft.parts.embeddings import ClassToken, ConvolutionStem, PatchEmbedding, Registers
from weft.parts.masks import Mask
from weft.parts.norms import Norm
from weft.parts.outputs import DistilledHead, PooledHead
from weft.parts.stack import Stack
from weft.parts.state import State
from weft.parts.token_positions import TokenPositions


def patch_side(image: int, stem: tuple[int, ...], patch: int) -> int:
    """Patches along one side of an image, after a stem that halves it at each step."""
    size = image
    for _ in stem:
        size = (size + 1) // 2
    if size % patch:
        raise ValueError(f"image {image} (after the stem {size}) does not divide into patch {patch}")
    return size // patch


def build_patches(patch: int, channels: int, width: int, stem: tuple[int, ...], bias: bool = True) -> PatchEmbedding:
    """The map from an image to vectors, with its stem."""
    return PatchEmbedding(patch, channels, width, ConvolutionStem(channels, stem) if stem else None, bias)


class VisionSpec(StackSpec):
    """Images of `image` x `image` pixels in patches of `patch`; `grid` says how patches know where they are.

    `pool` first is the class token's answer, mean the average pool (then there is no class token), distilled the mean
    of two answers, the class token's and that of the first of the `registers` after it (DeiT). `input_norm` is a norm
    before the first block.
    """

    SKIPS: ClassVar[tuple[str, ...]] = ()

    family: Literal["vision"] = "vision"
    image: PositiveInt = 32
    patch: PositiveInt = 4
    channels: PositiveInt = 3
    patch_bias: bool = True
    stem: tuple[PositiveInt, ...] = ()
    positions: AnyPositionSpec = NoPositionsSpec()
    grid: GridSpec = GridTableSpec()
    input_norm: bool = False
    pool: Literal["first", "mean", "distilled"] = "first"
    registers: NonNegativeInt = 0
    classes: PositiveInt | None = None
    head_hidden: PositiveInt | None = None
    head_activation: ActivationName | Literal["tanh"] = "tanh"

    @model_validator(mode="after")
    def _images_fit(self) -> Self:
        patch_side(self.image, self.stem, self.patch)
        if self.pool == "mean" and self.registers:
            raise ValueError(f"{self.registers} registers stand after a class token, but pool mean has none: use first")
        if self.pool == "distilled" and (not self.registers or self.classes is None or self.head_hidden):
            raise ValueError("pool distilled needs registers (1 or more), classes, and no head_hidden")
        if self.pool != "mean" and any(mixer.kind == "grid-convolution" for mixer in self.mixer):
            raise ValueError("mixer grid-convolution has no place for a class token: set pool to mean")
        if self.positions.nature() == "absolute":
            raise ValueError("positions of a vision model are set by grid: leave positions out")
        return self

    @property
    def side(self) -> int:
        """Patches along one side of the image."""
        return patch_side(self.image, self.stem, self.patch)

    @property
    def extra(self) -> int:
        """Tokens before the patches: the class token and the registers."""
        return 0 if self.pool == "mean" else 1 + self.registers

    def build(self) -> VisionTransformer:
        """The model, with torch's own random weights; `weft.build` initializes it."""
        return VisionTransformer(
            self,
            build_patches(self.patch, self.channels, self.width, self.stem, self.patch_bias),
            ClassToken(self.width) if self.extra else None,
            Registers(self.registers, self.width) if self.registers else None,
            self.grid.build((self.side, self.side), self.width, self.extra),
            self.build_stack(seen_by(causal=False)),
            self._build_head(),
            self.norm.build(self.width) if self.input_norm else None,
        )

    def _build_head(self) -> PooledHead | DistilledHead:
        if self.pool == "distilled":
            assert self.classes is not None
            return DistilledHead(self.width, self.classes)
        return PooledHead(self.width, self.classes, self.pool, self.head_hidden, self.head_activation)

    def declares(self) -> Declaration:
        """Not causal, no cache; order counts where the grid has positions."""
        body = self.declare(self.family)
        nature = body.positions if self.grid.kind == "none" else "absolute"
        return Declaration(**{**body.__dict__, "positions": nature, "order_free": body.order_free and nature == "none"})


class VisionTransformer(nn.Module):
    """`model(images)`: hidden states of class token and patches, and the classes' logits."""

    def __init__(
        self,
        spec: VisionSpec,
        patches: PatchEmbedding,
        class_token: ClassToken | None,
        registers: Registers | None,
        grid: nn.Module | None,
        stack: Stack,
        head: PooledHead | DistilledHead,
        input_norm: Norm | None = None,
    ) -> None:
        super().__init__()
        self.spec, self.patches, self.class_token, self.registers = spec, patches, class_token, registers
        self.grid, self.stack, self.head, self.input_norm = grid, stack, head, input_norm

    def forward(
        self,
        images: Tensor,
        positions: Tensor | None = None,
        mask: Mask | Tensor | None = None,
        state: State | None = None,
    ) -> Output:
        """[B, C, height, width] -> hidden [B, extra + h w, D], logits [B, classes]; other sizes resize the grid."""
        if positions is not None or state is not None:
            raise WeftError("a vision model has its image's grid for positions and keeps no state: leave both out")
        mask = as_mask(mask)
        if mask is not None and any(leaf.marks_padding for leaf in mask.leaves()):
            raise WeftError("an image has no padding and no documents: leave them out of the mask")
        x, grid = self.patches(images)
        cells = TokenPositions.run(0, x.shape[1], x.device, grid)
        token_positions = cells if self.class_token is None else cells.after(self.spec.extra)
        if self.class_token is not None:
            x = self.class_token(x)
        if self.registers is not None:
            x = self.registers(x)
        if self.grid is not None:
            x = self.grid(x, grid)
        if self.input_norm is not None:
            x = self.input_norm(x)
        auxiliary = Auxiliary()
        hidden = self.stack(x, token_positions, mask, auxiliary=auxiliary)
        return Output(hidden, lambda h: self.head(h, token_positions), None, auxiliary.summary())

    def declares(self) -> Declaration:
        return self.spec.declares()
