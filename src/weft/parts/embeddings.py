"""Embeddings: what turns tokens, image patches or numbers into vectors of width D."""

from __future__ import annotations

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weft.foundation.errors import ShapeError
from weft.parts.norms import Norm
from weft.parts.places import Places
from weft.parts.weights import drawn


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
        self.weight = drawn(vocabulary, width)

    def forward(self, tokens: Tensor) -> Tensor:
        """[B, T] -> [B, T, D]."""
        if tokens.dtype.is_floating_point:
            raise ShapeError(f"tokens are whole numbers, but these are {tokens.dtype}: convert them with .long()")
        if (
            tokens.device.type == "cpu"
            and tokens.numel()
            and not 0 <= int(tokens.min()) <= int(tokens.max()) < self.vocabulary
        ):
            worst = int(tokens.max()) if int(tokens.min()) >= 0 else int(tokens.min())
            raise ShapeError(f"token {worst}, but the vocabulary has 0 to {self.vocabulary - 1}: check the tokeniser")
        x = F.embedding(tokens, self.weight)
        return x if self.scale == 1.0 else x * self.scale


class VectorEmbedding(nn.Module):
    """Numeric vectors [B, T, C] -> [B, T, D] by a linear map."""

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(channels, width)

    def forward(self, vectors: Tensor) -> Tensor:
        """[B, T, C] -> [B, T, D]."""
        if vectors.shape[-1] != self.linear.in_features:
            raise ShapeError(f"vectors of {vectors.shape[-1]} numbers, but the model takes {self.linear.in_features}")
        return self.linear(vectors)


class PatchEmbedding(nn.Module):
    """Patches of p x p pixels, flattened, times W [channels p p, D]: the same as a p x p convolution of stride p.

    Patch size 1 makes pixels tokens. With a `stem` (a module on images, such as `ConvolutionStem`) it sees the stem's
    channels.
    """

    def __init__(self, patch: int, channels: int, width: int, stem: nn.Module | None = None) -> None:
        super().__init__()
        self.patch, self.channels = patch, channels
        self.stem = stem
        self.linear = nn.Linear(channels * patch * patch, width)

    def forward(self, images: Tensor) -> tuple[Tensor, tuple[int, int]]:
        """[B, channels, height, width] -> ([B, h w, D], (h, w))."""
        if images.dim() != 4:
            raise ShapeError(f"images are [B, channels, height, width], but these are {tuple(images.shape)}")
        if self.stem is not None:
            images = self.stem(images)
        if images.shape[1] != self.channels:
            raise ShapeError(f"images of {images.shape[1]} channels, but the model takes {self.channels}")
        grid = (images.shape[-2] // self.patch, images.shape[-1] // self.patch)
        return self.linear(patchify(images, self.patch)), grid


class ConvolutionStem(nn.Module):
    """3 x 3 convolutions of stride 2 before the patches (Xiao et al. 2021): each halves height and width."""

    def __init__(self, channels: int, widths: tuple[int, ...]) -> None:
        super().__init__()
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
        self.vector = drawn(width)

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, D] -> [B, 1 + T, D]."""
        return torch.cat((self.vector.to(x.dtype).expand(x.shape[0], 1, -1), x), dim=1)


class SegmentEmbedding(nn.Module):
    """Which of a few parts of the input a token belongs to (sentence A or B in BERT); part 0 if not told."""

    def __init__(self, segments: int, width: int) -> None:
        super().__init__()
        self.table = drawn(segments, width)

    def forward(self, x: Tensor, segments: Tensor | None = None) -> Tensor:
        """x + S_segment."""
        return x + (self.table[0] if segments is None else F.embedding(segments, self.table))


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

    def forward(self, x: Tensor, places: Places, segments: Tensor | None = None) -> Tensor:
        """[B, T, D] -> [B, (1 +) T, D]; `places` count the class token where there is one."""
        if self.segments is not None:
            x = self.segments(x, segments)
        elif segments is not None:
            raise ShapeError("this model has no segments: leave them out, or build it with segments=2")
        if self.class_token is not None:
            x = self.class_token(x)
        if self.position is not None:
            x = self.position(x, places)
        if self.norm is not None:
            x = self.norm(x)
        return F.dropout(x, self.dropout, self.training)
