"""Matrices as the native code reads them: float32 by rows, blocks packed once into the order of its instructions.

They lie in memory of large pages where the system has them: decoding reads every weight once per token, and with pages
of 4 KB looking up addresses would take a good part of that time.
"""

from __future__ import annotations

import ctypes
import mmap
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from weft.inference.fast.native.layout import BLOCK_KINDS, Matrix, Segment, matrix_of
from weft.inference.fast.native.library import library
from weft.inference.fast.packed_weights import free_memory
from weft.parts.quantized import BlockMatrix, BlockQuantizedLinear

WORTH_COPYING = 1 << 18  # weights
CHUNK = 1 << 28  # bytes of address space at a time; memory is taken only where something is written
ALIGNMENT = 64
NATIVE_ROWS = 32  # rows of a float32 product up to which reading weights is most of the work
NATIVE_BLOCK_ROWS = 128  # rows of a step by matrices in blocks, whose products are fast for any number
ONE_THREAD_WEIGHTS = 1 << 20  # weights below which one thread is faster than two that wait for each other


_asked = threading.local()


class Unsupported(Exception):
    """A part that the native step does not support."""


@contextmanager
def rows_alike() -> Iterator[None]:
    """Within it, in this thread, native code takes any number of rows, also where torch would be faster.

    A row has the same bits then in whatever company.
    """
    before = all_rows_alike()
    _asked.alike = True
    try:
        yield
    finally:
        _asked.alike = before


def all_rows_alike() -> bool:
    """Whether this thread is inside `rows_alike`."""
    return getattr(_asked, "alike", False)


class WeightRoom:
    """Room for the weights of one model, in large pages."""

    def __init__(self) -> None:
        self._chunk, self._used = torch.empty(0, dtype=torch.uint8), 0

    def take(self, size: int) -> Tensor:
        """uint8 [size], aligned."""
        if self._used + size > self._chunk.numel():
            area = _private_memory(max(size, CHUNK))
            self._chunk, self._used = torch.frombuffer(area, dtype=torch.uint8), 0
        taken = self._chunk[self._used : self._used + size]
        self._used += -(-size // ALIGNMENT) * ALIGNMENT
        return taken


def _private_memory(size: int) -> mmap.mmap:
    """Zeros of its own, in large pages where the system has them: Linux gives them to private memory only."""
    if not hasattr(mmap, "MADV_HUGEPAGE"):
        return mmap.mmap(-1, size)
    area = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    area.madvise(mmap.MADV_HUGEPAGE)
    return area


class NativeMatrix:
    """y = x W^T + b by native code; the tensors that it points to live as long as it does."""

    def __init__(
        self, found: ctypes.CDLL, weight: Tensor | BlockMatrix, bias: Tensor | None, room: WeightRoom | None = None
    ) -> None:
        self._library = found
        bias = float32(bias)
        if isinstance(weight, BlockMatrix):
            self.matrix, held = _packed(found, weight, bias, room or WeightRoom())
        else:
            held = [_in_large_pages(_required(weight), room or WeightRoom())]
            self.matrix = matrix_of(held[0], bias)
        self._held = [*held, *([] if bias is None else [bias])]

    @property
    def in_blocks(self) -> bool:
        return not self.matrix.weight

    @property
    def most_rows(self) -> int:
        """Number of rows up to which each is computed as it is alone."""
        return NATIVE_BLOCK_ROWS if self.in_blocks else NATIVE_ROWS

    def __call__(self, x: Tensor) -> Tensor | None:
        """[..., D] -> [..., C]; None where torch does better."""
        rows = x.numel() // x.shape[-1]
        few = rows <= NATIVE_ROWS or self.in_blocks or all_rows_alike()
        if not few or not rows or x.dtype != torch.float32 or x.device.type != "cpu":
            return None
        if torch.is_grad_enabled() and x.requires_grad:
            return None
        x = x.contiguous()
        y = torch.empty(*x.shape[:-1], self.matrix.rows)
        alone = self.matrix.rows * self.matrix.cols * rows < ONE_THREAD_WEIGHTS
        threads = 1 if alone else torch.get_num_threads()
        rooms = rows * (threads if rows <= 2 else 1)
        size = rooms * self._library.weft_rounded_size(self.matrix.cols) if self.in_blocks else 0
        rounded = torch.empty(size, dtype=torch.uint8)
        self._library.weft_product(
            ctypes.byref(self.matrix), x.data_ptr(), y.data_ptr(), rows, rounded.data_ptr(), threads
        )
        return y


def native_head(weight: Tensor | BlockMatrix, bias: Tensor | None) -> NativeMatrix | None:
    """x W^T + b over the vocabulary by the native product, where it fits."""
    found = library()
    try:
        return None if found is None else NativeMatrix(found, weight, None if bias is None else bias.detach())
    except Unsupported:
        return None


def _packed(found: ctypes.CDLL, weight: BlockMatrix, bias: Tensor | None, room: WeightRoom) -> tuple[Matrix, list[Any]]:
    if weight.blocks.device.type != "cpu":
        raise Unsupported
    held: list[Any] = []
    segments = []
    for kind, stored in weight.stored():
        number, stored = BLOCK_KINDS.index(kind), stored.contiguous()
        packed = room.take(found.weft_packed_size(number, stored.shape[0], weight.columns))
        found.weft_pack(number, stored.data_ptr(), stored.shape[0], weight.columns, packed.data_ptr())
        segments.append(Segment(packed.data_ptr(), number, stored.shape[0]))
        held.append(packed)
    table = (Segment * len(segments))(*segments)
    bias_at = None if bias is None else bias.data_ptr()
    matrix = Matrix(None, ctypes.addressof(table), bias_at, weight.rows, weight.columns, len(segments))
    return matrix, [*held, table]


class BlockProducts:
    """The products of all quantized layers inside a module, for `products_by`."""

    def __init__(self, found: ctypes.CDLL, module: nn.Module) -> None:
        self.room = room = WeightRoom()
        parts = (part for part in module.modules() if isinstance(part, BlockQuantizedLinear))
        self.matrices = {
            id(part): NativeMatrix(found, part, part.bias, room) for part in parts if part.blocks.device.type == "cpu"
        }

    def __call__(self, linear: BlockQuantizedLinear, x: Tensor) -> Tensor | None:
        """[..., D] -> [..., C]; None for a layer that is not known, and where torch must compute."""
        found = self.matrices.get(id(linear))
        return None if found is None else found(x)


def float32(x: Tensor | None) -> Tensor | None:
    """The tensor as the native code reads it; other types and devices are not supported."""
    if x is None:
        return None
    if x.dtype != torch.float32 or x.device.type != "cpu":
        raise Unsupported
    return x.detach().contiguous()


def _in_large_pages(weight: Tensor, room: WeightRoom) -> Tensor:
    """A copy in large pages, of matrices that are not kept in a cache anyway and where there is memory for two."""
    size = weight.numel() * weight.element_size()
    if weight.numel() < WORTH_COPYING or 2 * size > free_memory():
        return weight
    return room.take(size).view(torch.float32).view(weight.shape).copy_(weight)


def _required(x: Tensor) -> Tensor:
    found = float32(x)
    assert found is not None
    return found
