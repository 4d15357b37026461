"""Filters: what the first layer of a vision model responds to, and how similar position vectors are.

The principal components of a vision transformer's patch filters look like edges and colors (Dosovitskiy et al. 2021
show the first 28). Vectors of nearby positions should be similar: cosine similarity shows it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weft.foundation.errors import WeftError
from weft.inspection.recording.calling import module_of
from weft.parts.embeddings import PatchEmbedding
from weft.parts.grid_positions import GridAxes, GridSinusoids, GridTable
from weft.parts.positions import LearnedPositions, SinusoidalPositions
from weft.parts.relative import Rotary
from weft.parts.token_positions import TokenPositions

FIRST = 28


@dataclass(frozen=True)
class Filters:
    """Principal components (n, channels, p, p) of the patch filters, and the share of the variance that each has.

    Each has unit norm; its sign is chosen so that its largest number is positive.
    """

    images: Tensor
    shares: Tensor


@torch.no_grad()
def patch_filters(subject: Any, count: int = FIRST) -> Filters:
    """Of the linear map from patches to vectors, or of the first convolution of a stem."""
    weight = _filter_weight(module_of(subject)).double()
    flat = weight.flatten(1)
    _, sizes, components = torch.linalg.svd(flat - flat.mean(0), full_matrices=False)
    variance = sizes.square()
    found = components[:count]
    found = found * torch.sign(found.gather(1, found.abs().argmax(1, keepdim=True)))
    return Filters(found.unflatten(1, weight.shape[1:]), (variance / variance.sum().clamp(min=1e-300))[:count])


def _filter_weight(module: nn.Module) -> Tensor:
    """[D, channels, p, p]."""
    for part in module.modules():
        if isinstance(part, PatchEmbedding):
            if part.stem is not None:
                first: Any = part.stem.layers[0]
                return first.weight
            return part.linear.weight.unflatten(1, (part.channels, part.patch, part.patch))
    for part in module.modules():
        if isinstance(part, nn.Conv2d):
            return part.weight
    raise WeftError("this model has no patch filters: give one that sees images, such as nano-vit")


@dataclass(frozen=True)
class Similarity:
    """Cosine similarity (N, N) of position vectors; those of an image form a `grid` (h, w) after `extra` tokens."""

    cosine: Tensor
    grid: tuple[int, int] | None = None
    extra: int = 0

    def of_cell(self, row: int, column: int) -> Tensor:
        """(h, w): the similarity of every cell's position to that of one cell."""
        if self.grid is None:
            raise WeftError("these positions form a sequence, not a grid: read a row of `cosine`")
        place = self.extra + row * self.grid[1] + column
        return self.cosine[place, self.extra :].view(self.grid)


@torch.no_grad()
def position_similarity(subject: Any, length: int | None = None) -> Similarity:
    """Of learned, fixed and grid positions; of rotary ones, of a vector to itself rotated by i - j."""
    module = module_of(subject)
    for part in module.modules():
        if isinstance(part, (GridTable, GridAxes, GridSinusoids)):
            return _of_grid(module, part)
        if isinstance(part, (LearnedPositions, SinusoidalPositions)):
            N = length or getattr(part, "length", None) or _length(module)
            x = torch.zeros(1, N, 1 if part.join == "add" else 0, device=_device(module))
            return Similarity(_cosine(part(x, TokenPositions.run(0, N, x.device))[0]))
        if isinstance(part, Rotary):
            N = length or _length(module)
            cos, sin = part.angles(torch.arange(N, device=_device(module))[None], torch.float32)
            half = part.width // 2
            return Similarity(_cosine(torch.cat((cos[0, 0, :, :half], sin[0, 0, :, half:]), -1)))
    table = _foreign_table(module)
    return Similarity(_cosine(table[: length or table.shape[0]]))


def _of_grid(module: nn.Module, part: GridTable | GridAxes | GridSinusoids) -> Similarity:
    side: int = getattr(getattr(module, "spec", None), "side", 0)
    grid = part.grid if isinstance(part, GridTable) else (side, side)
    if not grid[0]:
        raise WeftError("the size of this grid is not known: give the whole model, not its positions alone")
    own = part.extra
    extra = own if isinstance(own, int) else 0 if own is None else own.shape[0]
    width = part.width if isinstance(part, GridSinusoids) else 1
    x = torch.zeros(1, extra + grid[0] * grid[1], width, device=_device(module))
    return Similarity(_cosine(part(x, grid)[0]), grid, extra)


def _foreign_table(module: nn.Module) -> Tensor:
    """The table of learned positions of another library's model, by its name."""
    for name, weight in module.named_parameters():
        last = [step for step in name.split(".") if step != "weight"][-1]
        if last in ("wpe", "pos_embed", "pos_emb") or "position_embedding" in last or "embed_positions" in last:
            return weight[0] if weight.dim() == 3 else weight
    raise WeftError("this model has no position vectors: its positions act inside attention, or there are none")


def _cosine(vectors: Tensor) -> Tensor:
    unit = F.normalize(vectors.double(), dim=-1)
    return unit @ unit.T


def _length(module: nn.Module) -> int:
    """The length of the model's texts; 64 where its spec has none."""
    return int(getattr(getattr(module, "spec", None), "length", 64))


def _device(module: nn.Module) -> torch.device:
    return next(module.parameters()).device
