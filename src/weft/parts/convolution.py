"""Convolution: parallel like attention, but of limited range; path length grows with distance / kernel.

y_t = sum_o W_o x_(t-o) + b,   o = 0 .. k-1 (causal) or -(k-1)/2 .. (k-1)/2 (centered)
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weft.foundation.errors import ShapeError
from weft.foundation.shapes import expect_width
from weft.parts.attention_context import AttentionContext
from weft.parts.linear import ResidualLinear
from weft.parts.segments import Segments, continues, last_document
from weft.parts.state import TensorState
from weft.parts.token_positions import TokenPositions


class Convolution(nn.Module):
    """A mixer: 1-D convolution over time, causal or centered, full or in `groups` (D = depthwise), then W_O."""

    def __init__(self, width: int, kernel: int = 5, causal: bool = True, groups: int = 1) -> None:
        super().__init__()
        if kernel < 1 or (not causal and kernel % 2 == 0):
            raise ShapeError(f"a centered convolution needs an odd kernel of at least 1, not {kernel}")
        if width % groups:
            raise ShapeError(f"width {width} does not divide into {groups} groups: choose groups that divide it")
        self.width, self.kernel, self.causal = width, kernel, causal
        self.taps = nn.Conv1d(width, width, kernel, groups=groups)
        self.output = ResidualLinear(width, width)

    def forward(self, x: Tensor, context: AttentionContext | None = None, state: TensorState | None = None) -> Tensor:
        """[B, T, D] -> [B, T, D]."""
        expect_width(x, self.width, "convolution")
        token_positions = (context or AttentionContext.of(x)).queries
        if state is not None and not self.causal:
            raise ShapeError("a centered convolution looks ahead, so it keeps no state: make it causal to decode")
        before = self._before(x, state)
        if token_positions.pads == "none" and token_positions.documents is None:
            row = torch.cat((before, x), 1)
            if state is not None:
                document = () if state.tensors is None else state.tensors[1:]
                state.keep(row[:, row.shape[1] - self.kernel + 1 :], *document)
            return self.output(self._convolve(row))
        return self.output(self._convolve_segments(x, token_positions, before, state))

    def _before(self, x: Tensor, state: TensorState | None) -> Tensor:
        """The k - 1 inputs before x: the state's, or zeros; a centered kernel has half of them."""
        if state is not None and state.tensors is not None:
            return state.tensors[0]
        return x.new_zeros(x.shape[0], self.kernel - 1 if self.causal else self.kernel // 2, self.width)

    def _convolve(self, row: Tensor) -> Tensor:
        ahead = 0 if self.causal else self.kernel // 2
        return self.taps(F.pad(row.transpose(1, 2), (0, ahead))).transpose(1, 2)

    def _convolve_segments(
        self, x: Tensor, token_positions: TokenPositions, before: Tensor, state: TensorState | None
    ) -> Tensor:
        segments = Segments.of(token_positions, x.shape[0])
        if not len(segments.lengths):
            return x.new_zeros(x.shape)
        document = state.tensors[1] if state is not None and state.tensors and len(state.tensors) > 1 else None
        going_on = continues(token_positions, segments, document)[:, None, None]
        row = torch.cat((torch.where(going_on, before[segments.rows], 0), segments.gather(x)), 1)
        if state is not None:
            reach = torch.arange(self.kernel - 1, device=x.device)
            window = row[torch.arange(len(row), device=x.device)[:, None], segments.lengths[:, None] + reach]
            kept = before.index_put((segments.rows[segments.last],), window[segments.last])
            state.keep(kept, *last_document(token_positions, x.shape[0], document))
        return segments.scatter(self._convolve(row))

    def make_state(self) -> TensorState:
        """The last k - 1 inputs, zeros at first."""
        return TensorState()


class GridConvolution(nn.Module):
    """A mixer: 2-D convolution over a grid of tokens (image patches), k x k, centered, then W_O; no class token."""

    def __init__(self, width: int, kernel: int = 3, groups: int = 1) -> None:
        super().__init__()
        if kernel % 2 == 0 or width % groups:
            raise ShapeError(
                f"a grid convolution needs an odd kernel and groups that divide {width}, not {kernel}, {groups}"
            )
        self.width, self.kernel = width, kernel
        self.taps = nn.Conv2d(width, width, kernel, padding=kernel // 2, groups=groups)
        self.output = ResidualLinear(width, width)

    def forward(self, x: Tensor, context: AttentionContext | None = None, state: TensorState | None = None) -> Tensor:
        """[B, rows x columns, D] -> the same."""
        expect_width(x, self.width, "grid convolution")
        grid = context.queries.grid if context is not None else None
        if grid is None or grid[0] * grid[1] != x.shape[1]:
            raise ShapeError(
                f"{x.shape[1]} tokens are no grid {grid}: give the token positions a grid, and use no class token"
            )
        image = x.transpose(1, 2).unflatten(-1, grid)
        return self.output(self.taps(image).flatten(-2).transpose(1, 2))

    def make_state(self) -> TensorState:
        """Nothing to keep: it is not causal."""
        return TensorState()
