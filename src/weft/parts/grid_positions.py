"""Positions of image grids: h x w patches in rows, after an optional class token.

Shapes: x [B, extra + h w, D]; `grid` = (h, w), which may differ from the trained one: learned tables are resized.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weft.parts import observer
from weft.parts.parameters import normal_parameter
from weft.parts.positions import sinusoids

Grid = tuple[int, int]


def resize_grid(table: Tensor, old: Grid, new: Grid, extra: int = 0) -> Tensor:
    """A learned table [extra + h w, D] for a new grid, by bicubic interpolation (Dosovitskiy et al. 2021)."""
    if old == new:
        return table
    kept, cells = table[:extra], table[extra:]
    image = cells.T.reshape(1, -1, *old)
    resized = F.interpolate(image, size=new, mode="bicubic", align_corners=False)
    return torch.cat((kept, resized[0].flatten(1).T.to(table.dtype)))


def resize_axis(table: Tensor, size: int) -> Tensor:
    """A learned table [n, D] for a new number of rows or columns, by linear interpolation."""
    if table.shape[0] == size:
        return table
    return F.interpolate(table.T[None], size=size, mode="linear", align_corners=False)[0].T


def grid_sinusoids(grid: Grid, width: int, like: Tensor) -> Tensor:
    """[h w, D]: sinusoids of the row in one half, of the column in the other."""
    half = width // 2
    rows = sinusoids(torch.arange(grid[0], device=like.device), half, like.dtype)
    columns = sinusoids(torch.arange(grid[1], device=like.device), width - half, like.dtype)
    pair = (rows[:, None].expand(-1, grid[1], -1), columns[None].expand(grid[0], -1, -1))
    return torch.cat(pair, -1).flatten(0, 1)


class GridTable(nn.Module):
    """One learned vector per cell (and one for the class token), as in the vision transformer; resized when needed."""

    def __init__(self, grid: Grid, width: int, extra: int = 0) -> None:
        super().__init__()
        self.grid, self.extra = grid, extra
        self.table = normal_parameter(extra + grid[0] * grid[1], width)

    def forward(self, x: Tensor, grid: Grid) -> Tensor:
        """x + P."""
        return _observed(self, x, x + resize_grid(self.table, self.grid, grid, self.extra))


class GridAxes(nn.Module):
    """Learned 2-D: a vector for the row plus a vector for the column; resized when needed."""

    def __init__(self, grid: Grid, width: int, extra: int = 0) -> None:
        super().__init__()
        self.rows = normal_parameter(grid[0], width)
        self.columns = normal_parameter(grid[1], width)
        self.extra = normal_parameter(extra, width) if extra else None

    def forward(self, x: Tensor, grid: Grid) -> Tensor:
        """x + R_row + C_column."""
        cells = (resize_axis(self.rows, grid[0])[:, None] + resize_axis(self.columns, grid[1])[None]).flatten(0, 1)
        return _observed(self, x, x + (cells if self.extra is None else torch.cat((self.extra, cells))))


class GridSinusoids(nn.Module):
    """Fixed by a formula, for any grid: see `grid_sinusoids`; the class token gets zeros."""

    def __init__(self, width: int, extra: int = 0) -> None:
        super().__init__()
        self.width, self.extra = width, extra

    def forward(self, x: Tensor, grid: Grid) -> Tensor:
        """x + P."""
        return _observed(self, x, x + F.pad(grid_sinusoids(grid, self.width, x), (0, 0, self.extra, 0)))


def _observed(part: nn.Module, x: Tensor, output: Tensor) -> Tensor:
    for one in observer.active:
        output = one.on_input_positions(part, x, output)
    return output
