"""Quantized: linear layers whose weights stay in blocks of 8, 6 or 4 bits, as drop-ins for those of float32.

    y = x W^T + b, W from its blocks by the formulas of `block_formats`

The rows of one matrix may be in blocks of several kinds (queries and keys of one, values of another). What is computed
here is the definition: weights from their blocks, activations in floating point. Faster products may round activations,
each row by itself: they are offered by `products_by`, and batch company changes nothing there either.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weft.foundation.errors import ShapeError
from weft.parts.block_formats import block_format, dequantize_blocks, quantize_blocks
from weft.parts.embeddings import TokenEmbedding
from weft.parts.error_feedback import quantize_with_feedback
from weft.parts.linear import is_plain_linear


class BlockSegment(NamedTuple):
    """Rows of a matrix whose blocks are of one kind."""

    kind: str
    rows: int


class BlockLayout(NamedTuple):
    """What the bytes of a matrix in blocks are: its segments from the first row to the last, and its columns."""

    segments: tuple[BlockSegment, ...]
    columns: int

    @property
    def rows(self) -> int:
        return sum(segment.rows for segment in self.segments)

    @property
    def bytes(self) -> int:
        return sum(rows * block_format(kind).row_bytes(self.columns) for kind, rows in self.segments)


class BlockMatrix(nn.Module):
    """W [C, D] in blocks: `blocks` holds the bytes of all segments, one after the other, row by row."""

    blocks: Tensor
    unit: Tensor

    def __init__(self, blocks: Tensor, segments: Sequence[BlockSegment], columns: int) -> None:
        nn.Module.__init__(self)
        self.segments, self.columns = tuple(BlockSegment(*one) for one in segments), columns
        needed = self.layout.bytes
        if blocks.dtype != torch.uint8 or blocks.numel() != needed:
            raise ShapeError(
                f"{blocks.numel():,} numbers of {blocks.dtype} for a matrix of {self.rows} x {columns} that "
                f"takes {needed:,} bytes in blocks of {', '.join(sorted({one.kind for one in self.segments}))}"
            )
        self.register_buffer("blocks", blocks.reshape(-1))
        # Not stored: its type is the one that weights are computed in, and follows `.double()` and the like.
        self.register_buffer("unit", torch.ones((), device="cpu"), persistent=False)

    @property
    def layout(self) -> BlockLayout:
        return BlockLayout(self.segments, self.columns)

    @property
    def rows(self) -> int:
        return self.layout.rows

    def stored(self) -> Iterator[tuple[str, Tensor]]:
        """Kind and bytes [rows, row bytes] of each segment."""
        first = 0
        for kind, rows in self.segments:
            each = block_format(kind).row_bytes(self.columns)
            yield kind, self.blocks[first : first + rows * each].view(rows, each)
            first += rows * each

    @property
    def weight(self) -> Tensor:
        """W as a floating-point matrix [C, D], computed from its blocks."""
        return dequantize_segments(self.blocks, self.layout).to(self.unit.dtype)

    def look_up(self, rows: Tensor) -> Tensor:
        """Some rows of W: [...] -> [..., D]."""
        if len(self.segments) > 1:
            return F.embedding(rows, self.weight)
        kind, stored = next(self.stored())
        return dequantize_blocks(kind, stored[rows], self.columns).to(self.unit.dtype)


def dequantize_segments(blocks: Tensor, layout: BlockLayout) -> Tensor:
    """Bytes of all segments -> float32 [C, D]."""
    sizes = [rows * block_format(kind).row_bytes(layout.columns) for kind, rows in layout.segments]
    return torch.cat(
        [
            dequantize_blocks(kind, part.view(rows, -1), layout.columns)
            for (kind, rows), part in zip(layout.segments, blocks.split(sizes), strict=True)
        ]
    )


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
    def of(linear: nn.Linear, kind: str, moments: Tensor | None = None) -> BlockQuantizedLinear:
        """Round a linear layer to blocks; one with an adapter as what both are together.

        With the second `moments` [D, D] of its inputs, blocks of Q4_1 are made with error feedback.
        """
        merged = getattr(linear, "merged", None)
        linear = linear if merged is None else merged()
        bias = None if linear.bias is None else linear.bias.detach().clone()
        segment = BlockSegment(kind, linear.out_features)
        if moments is not None and kind == "Q4_1":
            blocks = quantize_with_feedback(linear.weight, moments)
        else:
            blocks = quantize_blocks(kind, linear.weight)
        return BlockQuantizedLinear(blocks, [segment], linear.in_features, bias)

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
        return F.linear(x, self.weight, self.bias)


class BlockQuantizedEmbedding(BlockMatrix, TokenEmbedding):  # type: ignore[misc]  # its weight is computed
    """A token embedding whose table E [C, D] is in blocks; a tied head multiplies by the same blocks."""

    def __init__(self, blocks: Tensor, segments: Sequence[BlockSegment], columns: int, scale: float = 1.0) -> None:
        super().__init__(blocks, segments, columns)
        self.vocabulary, self.scale = self.rows, scale

    @property
    def device(self) -> torch.device:
        return self.blocks.device


def quantize(module: nn.Module, kind: str = "Q8_0") -> nn.Module:
    """Put a `BlockQuantizedLinear` in the place of every linear layer inside `module`; a linear layer gives its own.

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


def takes_blocks(part: nn.Module) -> bool:
    """Whether a part's weight can be in blocks: a plain linear layer, or a table of tokens."""
    if isinstance(part, nn.Linear):
        return is_plain_linear(part)
    return type(part) is TokenEmbedding


def hold_blocks(model: nn.Module, layouts: Mapping[str, BlockLayout]) -> nn.Module:
    """Put quantized parts, still without their bytes, in the place of those named, in place; for a state dict with
    `NAME.blocks` instead of `NAME.weight`."""
    parts = dict(model.named_modules())
    for name, layout in layouts.items():
        parent, _, own = name.rpartition(".")
        part: Any = parts.get(name)
        if part is None or not takes_blocks(part) or part.weight.shape != (layout.rows, layout.columns):
            raise ShapeError(f"{name} is no matrix of {layout.rows} x {layout.columns} in this model")
        empty = torch.empty(layout.bytes, dtype=torch.uint8, device="meta")
        made: BlockMatrix
        if isinstance(part, TokenEmbedding):
            made = BlockQuantizedEmbedding(empty, layout.segments, layout.columns, part.scale)
        else:
            bias = None if part.bias is None else part.bias.detach()
            made = BlockQuantizedLinear(empty, layout.segments, layout.columns, bias)
        setattr(model.get_submodule(parent), own, made.train(part.training))
    return model


def block_layouts(model: nn.Module) -> dict[str, BlockLayout]:
    """The parts of a model whose weights are in blocks, by name."""
    return {name: part.layout for name, part in model.named_modules() if isinstance(part, BlockMatrix)}


def dequantized_state(state: Mapping[str, Tensor], layouts: Mapping[str, BlockLayout]) -> dict[str, Tensor]:
    """A state dict with `NAME.weight` in float32 for every `NAME.blocks`."""
    found = dict(state)
    for name, layout in layouts.items():
        found[f"{name}.weight"] = dequantize_segments(found.pop(f"{name}.blocks"), layout)
    return found


def dequantize(module: nn.Module) -> nn.Module:
    """Put floating-point parts in the place of all quantized ones, in place; a quantized part alone gives its own."""
    if not isinstance(module, BlockMatrix):
        for name, child in module.named_children():
            setattr(module, name, dequantize(child))
        return module
    made: nn.Module
    if isinstance(module, BlockQuantizedEmbedding):
        made = TokenEmbedding(module.vocabulary, module.columns, module.scale)
    else:
        bias = getattr(module, "bias", None)
        made = nn.Linear(module.columns, module.rows, bias is not None)
        if bias is not None:
            made.bias = nn.Parameter(bias)
    made.weight = nn.Parameter(module.weight)
    return made.train(module.training)
