"""Quantized: linear layers whose weights stay in blocks of 8, 6 or 4 bits, as drop-ins for those of float32.

    y = x W^T + b, W from its blocks by the formulas of `block_formats`

The rows of one matrix may be in blocks of several kinds (queries and keys of one, values of another). What is computed
here is the definition: weights from their blocks, activations in floating point. Faster products may round activations,
each row by itself: they are offered by `products_by`, and batch company changes nothing there either.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weft.foundation.errors import ShapeError
from weft.parts.block_formats import block_format, dequantize_blocks, quantize_blocks


class BlockSegment(NamedTuple):
    """Rows of a matrix whose blocks are of one kind."""

    kind: str
    rows: int


class BlockMatrix(nn.Module):
    """W [C, D] in blocks: `blocks` holds the bytes of all segments, one after the other, row by row."""

    blocks: Tensor

    def __init__(self, blocks: Tensor, segments: Sequence[BlockSegment], columns: int) -> None:
        super().__init__()
        self.segments, self.columns = tuple(BlockSegment(*one) for one in segments), columns
        needed = sum(rows * block_format(kind).row_bytes(columns) for kind, rows in self.segments)
        if blocks.dtype != torch.uint8 or blocks.numel() != needed:
            raise ShapeError(
                f"{blocks.numel():,} {str(blocks.dtype).removeprefix('torch.')} for a matrix of {self.rows} x {columns} "
                f"that takes {needed:,} bytes in blocks of {', '.join(sorted({one.kind for one in self.segments}))}"
            )
        self.register_buffer("blocks", blocks.reshape(-1))

    @property
    def rows(self) -> int:
        return sum(segment.rows for segment in self.segments)

    def stored(self) -> Iterator[tuple[str, Tensor]]:
        """Kind and bytes [rows, row bytes] of each segment."""
        first = 0
        for kind, rows in self.segments:
            each = block_format(kind).row_bytes(self.columns)
            yield kind, self.blocks[first : first + rows * each].view(rows, each)
            first += rows * each

    @property
    def weight(self) -> Tensor:
        """W as a float32 matrix [C, D], computed from its blocks."""
        return torch.cat([dequantize_blocks(kind, stored, self.columns) for kind, stored in self.stored()])

    def look_up(self, rows: Tensor) -> Tensor:
        """Some rows of W: [...] -> [..., D]."""
        if len(self.segments) > 1:
            return F.embedding(rows, self.weight)
        kind, stored = next(self.stored())
        return dequantize_blocks(kind, stored[rows], self.columns)


Product = Callable[["BlockQuantizedLinear", Tensor], "Tensor | None"]
_offered = threading.local()


@contextmanager
def products_by(product: Product) -> Iterator[None]:
    """Within it, in this thread, quantized layers ask `product` first; where it gives None they compute themselves."""
    before = getattr(_offered, "product", None)
    _offered.product = product
    try:
        yield
    finally:
        _offered.product = before


class BlockQuantizedLinear(BlockMatrix):
    """y = x W^T + b: a linear layer whose weight is in blocks."""

    bias: Tensor | None

    def __init__(
        self, blocks: Tensor, segments: Sequence[BlockSegment], columns: int, bias: Tensor | None = None
    ) -> None:
        super().__init__(blocks, segments, columns)
        self.register_buffer("bias", bias)

    @staticmethod
    def of(linear: nn.Linear, kind: str) -> BlockQuantizedLinear:
        """Round a linear layer to blocks; one with an adapter as what both are together."""
        merged = getattr(linear, "merged", None)
        linear = linear if merged is None else merged()
        bias = None if linear.bias is None else linear.bias.detach().clone()
        segment = BlockSegment(kind, linear.out_features)
        return BlockQuantizedLinear(quantize_blocks(kind, linear.weight), [segment], linear.in_features, bias)

    @property
    def in_features(self) -> int:
        return self.columns

    @property
    def out_features(self) -> int:
        return self.rows

    def forward(self, x: Tensor) -> Tensor:
        """[..., D] -> [..., C]."""
        product = None if torch.compiler.is_compiling() else getattr(_offered, "product", None)
        y = None if product is None else product(self, x)
        if y is not None:
            return y
        return F.linear(x, self.weight.to(x), None if self.bias is None else self.bias.to(x))


def quantize(module: nn.Module, kind: str = "Q8_0") -> nn.Module:
    """Put a `BlockQuantizedLinear` in the place of every linear layer inside `module`; a linear layer alone gives its own.

    Embeddings, norms, routers and the stacked matrices of experts stay as they are.
    """
    if isinstance(module, nn.Linear):
        return BlockQuantizedLinear.of(module, kind)
    for name, child in module.named_children():
        if isinstance(child, nn.Linear):
            setattr(module, name, BlockQuantizedLinear.of(child, kind))
        else:
            quantize(child, kind)
    return module
