"""Embeddings: what turns tokens, image patches or numbers into vectors of width D."""

from __future__ import annotations

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weft.foundation.errors import ShapeError
from weft.parts import observer
from weft.parts.linear import Linear
from weft.parts.norms import Norm
from weft.parts.parameters import normal_parameter
from weft.parts.token_positions import TokenPositions


def patchify(images: Tensor, patch: int) -> Tensor:
    """Images [B, channels, height, width] as rows of flattened patches [B, h w, channels patch patch]."""
    height, width = images.shape[-2:]
    if height % patch or width % patch or 0 in (height, width):
        raise ShapeError(
            f"an image of {height} x {width} does not divide into patches of {patch} x {patch}: "
            "resize the image or choose another patch size"
        )
    cells = images.unflatten(-2, (height // patch, patch)).unflatten(-1, (width // patch, patch))
    return cells.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)


class TokenEmbedding(nn.Module):
    """A look-up in E [C, D]: the same as a one-hot vector times E. `scale` multiplies it (sqrt D in the original)."""

    def __init__(self, vocabulary: int, width: int, scale: float = 1.0) -> None:
        super().__init__()
        self.vocabulary, self.scale = vocabulary, scale
        self.weight = normal_parameter(vocabulary, width)

    def forward(self, tokens: Tensor) -> Tensor:
        """[B, T] -> [B, T, D]."""
        if tokens.dtype.is_floating_point or tokens.dtype == torch.bool:
            raise ShapeError(f"tokens are whole numbers, but these are {tokens.dtype}: convert them with .long()")
        numbers = tokens.long()
        self.expect_known(numbers)
        x = self.look_up(numbers)
        x = x if self.scale == 1.0 else x * self.scale
        for one in observer.active:
            x = one.on_embedding(self, tokens, x)
        return x

    @property
    def device(self) -> torch.device:
        """Where the table is."""
        return self.weight.device

    def look_up(self, tokens: Tensor) -> Tensor:
        """Rows of E: [B, T] -> [B, T, D]."""
        return F.embedding(tokens, self.weight)

    def expect_known(self, tokens: Tensor) -> None:
        """Refuse tokens outside of the vocabulary, where looking does not make a device wait."""
        if tokens.device.type != "cpu" or not tokens.numel() or torch.compiler.is_compiling():
            return
        least, most = int(tokens.min()), int(tokens.max())
        if least < 0 or most >= self.vocabulary:
            worst = least if least < 0 else most
            raise ShapeError(f"token {worst}, but the vocabulary has 0 to {self.vocabulary - 1}: check the tokenizer")


class VectorEmbedding(nn.Module):
    """Numeric vectors [B, T, C] -> [B, T, D] by a linear map."""

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.linear = Linear(channels, width)

    def forward(self, vectors: Tensor) -> Tensor:
        """[B, T, C] -> [B, T, D]."""
        if vectors.shape[-1] != self.linear.in_features:
            raise ShapeError(f"vectors of {vectors.shape[-1]} numbers, but the model takes {self.linear.in_features}")
        x: Tensor = self.linear(vectors.to(self.linear.weight.dtype))
        for one in observer.active:
            x = one.on_embedding(self, vectors, x)
        return x


class SeriesEmbedding(VectorEmbedding):
    """A series of C numbers per step as tokens of `patch` steps each, by a linear map of their patch x C numbers."""

    def __init__(self, patch: int, channels: int, width: int) -> None:
        super().__init__(patch * channels, width)
        self.patch, self.channels = patch, channels

    def forward(self, values: Tensor) -> Tensor:
        """[B, T patch, C] -> [B, T, D]."""
        if values.shape[-1] != self.channels or values.shape[1] % self.patch:
            raise ShapeError(
                f"a series is [B, steps, {self.channels}] with steps a multiple of patch {self.patch}, "
                f"but this one has shape {tuple(values.shape)}: fill it up to whole patches"
            )
        return super().forward(values.unflatten(1, (-1, self.patch)).flatten(2))


class PatchEmbedding(nn.Module):
    """Patches of p x p pixels, flattened, times W [channels p p, D]: the same as a p x p convolution of stride p.

    Patch size 1 makes pixels tokens. With a `stem` it sees the stem's last channels.
    """

    def __init__(
        self, patch: int, channels: int, width: int, stem: ConvolutionStem | None = None, bias: bool = True
    ) -> None:
        super().__init__()
        self.patch = patch
        self.channels = channels if stem is None else stem.widths[-1]
        self.stem = stem
        self.linear = Linear(self.channels * patch * patch, width, bias=bias)

    def forward(self, images: Tensor) -> tuple[Tensor, tuple[int, int]]:
        """[B, channels, height, width] -> ([B, h w, D], (h, w))."""
        if images.dim() != 4:
            raise ShapeError(f"images are [B, channels, height, width], but these are {tuple(images.shape)}")
        if not images.is_floating_point():
            raise ShapeError(
                f"images are floating-point numbers, but these are {images.dtype}: use images.float() / 255"
            )
        taken = self.channels if self.stem is None else self.stem.channels
        if images.shape[1] != taken:
            raise ShapeError(f"images of {images.shape[1]} channels, but the model takes {taken}")
        pixels = images.to(self.linear.weight.dtype)
        if self.stem is not None:
            pixels = self.stem(pixels)
        x: Tensor = self.linear(patchify(pixels, self.patch))
        for one in observer.active:
            x = one.on_embedding(self, images, x)
        return x, (pixels.shape[-2] // self.patch, pixels.shape[-1] // self.patch)


class ConvolutionStem(nn.Module):
    """3 x 3 convolutions of stride 2 before the patches (Xiao et al. 2021): each halves height and width."""

    def __init__(self, channels: int, widths: tuple[int, ...]) -> None:
        super().__init__()
        self.channels, self.widths = channels, widths
        sizes = (channels, *widths)
        self.layers = nn.ModuleList(nn.Conv2d(a, b, 3, stride=2, padding=1) for a, b in pairwise(sizes))

    def forward(self, images: Tensor) -> Tensor:
        """[B, channels, height, width] -> [B, widths[-1], height / 2^n, width / 2^n]."""
        for layer in self.layers:
            images = F.gelu(layer(images))
        return images


class ClassToken(nn.Module):
    """A learned vector put before each sequence, whose last state stands for the whole (BERT, ViT)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.vector = normal_parameter(width)

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, D] -> [B, 1 + T, D]."""
        return torch.cat((self.vector.to(x.dtype).expand(x.shape[0], 1, -1), x), dim=1)


class Registers(nn.Module):
    """Learned vectors R [n, D] put after the class token: room for what belongs to no patch (Darcet et al. 2024).

    The distillation token of DeiT (Touvron et al. 2021) is one.
    """

    def __init__(self, count: int, width: int) -> None:
        super().__init__()
        self.table = normal_parameter(count, width)

    def forward(self, x: Tensor) -> Tensor:
        """[B, 1 + T, D] -> [B, 1 + n + T, D]."""
        return torch.cat((x[:, :1], self.table.to(x.dtype).expand(x.shape[0], -1, -1), x[:, 1:]), dim=1)


class SegmentEmbedding(nn.Module):
    """Which of a few parts of the input a token belongs to (sentence A or B in BERT); part 0 if not told."""

    def __init__(self, segments: int, width: int) -> None:
        super().__init__()
        self.table = normal_parameter(segments, width)

    def forward(self, x: Tensor, segments: Tensor | None = None) -> Tensor:
        """x + S_segment."""
        if segments is None:
            return x + self.table[0]
        if segments.shape != x.shape[:2]:
            raise ShapeError(
                f"segments of shape {tuple(segments.shape)} for tokens of {tuple(x.shape[:2])}: give one per token"
            )
        if segments.device.type == "cpu" and not bool(((segments >= 0) & (segments < len(self.table))).all()):
            raise ShapeError(f"segments are 0 to {len(self.table) - 1}: check the segment ids")
        return x + F.embedding(segments.long(), self.table)


class SequenceInput(nn.Module):
    """The input transformation after the embedding: segments, class token, positions, norm, dropout."""

    def __init__(
        self,
        position: nn.Module | None = None,
        class_token: ClassToken | None = None,
        segments: SegmentEmbedding | None = None,
        norm: Norm | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.position, self.class_token = position, class_token
        self.segments, self.norm, self.dropout = segments, norm, dropout

    def forward(self, x: Tensor, token_positions: TokenPositions, segments: Tensor | None = None) -> Tensor:
        """[B, T, D] -> [B, (1 +) T, D]; `token_positions` count the class token where there is one."""
        if self.segments is not None:
            x = self.segments(x, segments)
        elif segments is not None:
            raise ShapeError("this model has no segments: leave them out, or build it with segments=2")
        if self.class_token is not None:
            x = self.class_token(x)
        if self.position is not None:
            y = self.position(x, token_positions)
            for one in observer.active:
                y = one.on_input_positions(self.position, x, y)
            x = y
        if self.norm is not None:
            x = self.norm(x)
        return F.dropout(x, self.dropout) if self.training else x


class GridInput(nn.Module):
    """The input transformation of image patches: positions on their grid, norm, dropout."""

    def __init__(self, grid: nn.Module | None = None, norm: Norm | None = None, dropout: float = 0.0) -> None:
        super().__init__()
        self.grid, self.norm, self.dropout = grid, norm, dropout

    def forward(self, x: Tensor, token_positions: TokenPositions) -> Tensor:
        """[B, h w, D] -> [B, h w, D]; `token_positions` know the grid (h, w)."""
        if self.grid is not None:
            x = self.grid(x, token_positions.grid)
        if self.norm is not None:
            x = self.norm(x)
        return F.dropout(x, self.dropout) if self.training else x
