"""Weight maps: which tensors of another library make up each of ours, in both directions.

A row of the table is one of our tensors, their tensors that it is made from, and the transform between: identity,
transpose, concatenation, reshape, a stack of experts. `read` makes ours from theirs, `write` theirs from ours.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from weft.checkpoints.formats.foreign_tensors import ForeignTensors, Shape
from weft.data.readers.files import DataError
from weft.parts.quantized import BlockLayout, BlockSegment

WEIGHT_TYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


class WeightMap(Protocol):
    """How their tensors become ours, and back."""

    def read(self, theirs: Sequence[Tensor]) -> Tensor:
        """Our tensor from theirs."""
        ...

    def write(self, ours: Tensor) -> list[Tensor]:
        """Their tensors from ours."""
        ...

    def shapes(self, ours: Shape) -> list[Shape]:
        """The shapes of their tensors that make up one of ours of this shape."""
        ...


@dataclass(frozen=True)
class Identity:
    """One tensor, as it is."""

    def read(self, theirs: Sequence[Tensor]) -> Tensor:
        return theirs[0]

    def write(self, ours: Tensor) -> list[Tensor]:
        return [ours]

    def shapes(self, ours: Shape) -> list[Shape]:
        return [ours]


@dataclass(frozen=True)
class Transposed:
    """A matrix [in, out] where ours is [out, in]."""

    def read(self, theirs: Sequence[Tensor]) -> Tensor:
        return theirs[0].T

    def write(self, ours: Tensor) -> list[Tensor]:
        return [ours.T]

    def shapes(self, ours: Shape) -> list[Shape]:
        return [ours[::-1]]


@dataclass(frozen=True)
class ConcatenatedRows:
    """Several tensors, with `sizes` rows each, concatenated in ours: queries, keys and values."""

    sizes: tuple[int, ...]

    def read(self, theirs: Sequence[Tensor]) -> Tensor:
        return torch.cat(list(theirs))

    def write(self, ours: Tensor) -> list[Tensor]:
        return list(ours.split(list(self.sizes)))

    def shapes(self, ours: Shape) -> list[Shape]:
        return [(size, *ours[1:]) for size in self.sizes]


@dataclass(frozen=True)
class Reshaped:
    """The same numbers in another shape: a kernel [D, C, p, p] is our matrix [D, C p p]."""

    theirs: Shape
    ours: Shape

    def read(self, theirs: Sequence[Tensor]) -> Tensor:
        return theirs[0].reshape(self.ours)

    def write(self, ours: Tensor) -> list[Tensor]:
        return [ours.reshape(self.theirs)]

    def shapes(self, ours: Shape) -> list[Shape]:
        return [self.theirs]


@dataclass(frozen=True)
class SkippedRows:
    """Theirs has `first` additional rows at its start, which are never used: positions that begin at 2."""

    first: int

    def read(self, theirs: Sequence[Tensor]) -> Tensor:
        return theirs[0][self.first :]

    def write(self, ours: Tensor) -> list[Tensor]:
        return [torch.cat((ours.new_zeros(self.first, *ours.shape[1:]), ours))]

    def shapes(self, ours: Shape) -> list[Shape]:
        return [(ours[0] + self.first, *ours[1:])]


@dataclass(frozen=True)
class HeadByHead:
    """Queries, keys and values of each head after the other, [H, 3, K, ...], where ours has all queries first."""

    heads: int

    def read(self, theirs: Sequence[Tensor]) -> Tensor:
        x = theirs[0]
        return x.unflatten(0, (self.heads, 3, -1)).transpose(0, 1).reshape(x.shape)

    def write(self, ours: Tensor) -> list[Tensor]:
        return [ours.unflatten(0, (3, self.heads, -1)).transpose(0, 1).reshape(ours.shape)]

    def shapes(self, ours: Shape) -> list[Shape]:
        return [ours]


@dataclass(frozen=True)
class StackedExperts:
    """One matrix per expert: ours stacks them [E, ...], each made by `inner` from its own tensors."""

    experts: int
    inner: WeightMap

    def read(self, theirs: Sequence[Tensor]) -> Tensor:
        each = len(theirs) // self.experts
        return torch.stack([self.inner.read(theirs[n * each : (n + 1) * each]) for n in range(self.experts)])

    def write(self, ours: Tensor) -> list[Tensor]:
        return [tensor for one in ours for tensor in self.inner.write(one)]

    def shapes(self, ours: Shape) -> list[Shape]:
        return [shape for _ in range(self.experts) for shape in self.inner.shapes(ours[1:])]


class WeightRow(NamedTuple):
    """One of our tensors, and their tensors that it is made from."""

    ours: str
    theirs: tuple[str, ...]
    transform: WeightMap = Identity()


def map_linear(
    ours: str, *theirs: str, sizes: tuple[int, ...] = (), bias: bool = True, transform: WeightMap | None = None
) -> list[WeightRow]:
    """Rows of a linear layer, from one of theirs or several that are concatenated, with or without bias."""
    joined: WeightMap = ConcatenatedRows(sizes) if len(theirs) > 1 else Identity()
    rows = [WeightRow(f"{ours}.weight", tuple(f"{name}.weight" for name in theirs), transform or joined)]
    return rows + ([WeightRow(f"{ours}.bias", tuple(f"{name}.bias" for name in theirs), joined)] if bias else [])


def map_norm(ours: str, theirs: str, bias: bool = True) -> list[WeightRow]:
    """Rows of a norm: gamma and, with `bias`, beta."""
    return [
        WeightRow(f"{ours}.gamma", (f"{theirs}.weight",)),
        *([WeightRow(f"{ours}.beta", (f"{theirs}.bias",))] if bias else []),
    ]


class MatchedRow(NamedTuple):
    """A row with the names of their tensors in the file."""

    row: WeightRow
    names: tuple[str, ...]

    def read(self, tensors: ForeignTensors) -> Tensor:
        """Our tensor; differing types are promoted to the widest."""
        found = [tensors.read(name) for name in self.names]
        widest = self.dtype(tensors)
        return self.row.transform.read([tensor.to(widest) for tensor in found])

    def block_layout(self, tensors: ForeignTensors) -> BlockLayout | None:
        """How our matrix is in blocks if theirs stay as they are stored: rows can be concatenated, columns cannot.

        A matrix that they hold transposed is stored by rows of ours.
        """
        kinds = [tensors.block_kind(name) for name in self.names]
        if type(self.row.transform) not in (Identity, Transposed, ConcatenatedRows) or None in kinds:
            return None
        shapes = [tensors.shapes[name] for name in self.names]
        if isinstance(self.row.transform, Transposed):
            shapes = [shape[::-1] for shape in shapes]
        segments = (BlockSegment(str(kind), shape[0]) for kind, shape in zip(kinds, shapes, strict=True))
        return BlockLayout(tuple(segments), shapes[0][1])

    def read_blocks(self, tensors: ForeignTensors) -> Tensor:
        """The bytes of our matrix, segment by segment."""
        return torch.cat([tensors.read_blocks(name).reshape(-1) for name in self.names])

    def dtype(self, tensors: ForeignTensors) -> torch.dtype:
        kinds = [tensors.dtype_of(name) for name in self.names]
        widest = kinds[0]
        for kind in kinds[1:]:
            widest = torch.promote_types(widest, kind)
        return widest


Canonical = Callable[[str], str | None]


def match_tensors(
    rows: Sequence[WeightRow],
    ours: Mapping[str, Shape],
    tensors: ForeignTensors,
    canonical: Canonical,
    copies: Mapping[str, str],
    unused: Sequence[str],
) -> tuple[list[MatchedRow], list[str]]:
    """Each row with its tensors in the file, and the names of unused ones; missing or unexpected tensors and wrong
    shapes are refused.

    `canonical` maps the spellings of a name to one (None: no weight), `copies` may be stored again, `unused` are
    prefixes of names that this model does not use.
    """
    known: dict[str, str] = {}
    for name in tensors.shapes:
        key = canonical(name)
        if key is not None:
            if key in known:
                raise DataError(f"{tensors.files} holds {known[key]} and {name}, which are the same: remove one")
            known[key] = name
    if {row.ours for row in rows} != set(ours):
        raise AssertionError(f"the name table and the model differ: {sorted({r.ours for r in rows} ^ set(ours))[:4]}")
    wanted = [canonical(name) or name for row in rows for name in row.theirs]
    missing = [name for name in wanted if name not in known]
    if missing:
        raise DataError(
            f"{tensors.files} lacks {len(missing)} of {len(wanted)} tensors, the first is {missing[0]}: "
            "fetch the folder again, or check that config.json belongs to it"
        )
    over = sorted(set(known) - set(wanted))
    left = [known[name] for name in over if name not in copies and any(name.startswith(start) for start in unused)]
    for name in over:
        if known[name] not in left:
            _expect_copy(tensors, known, name, copies)
    matched = [MatchedRow(row, tuple(known[canonical(name) or name] for name in row.theirs)) for row in rows]
    for one in matched:
        _expect_shapes(one, ours[one.row.ours], tensors)
    return matched, left


def _expect_copy(tensors: ForeignTensors, known: Mapping[str, str], name: str, copies: Mapping[str, str]) -> None:
    original = copies.get(name)
    if original is None or original not in known:
        raise DataError(
            f"{tensors.files} holds {known[name]}, which this architecture does not have: "
            "check that config.json belongs to it"
        )
    if not tensors.same(known[name], known[original]):
        raise DataError(
            f"{known[name]} and {known[original]} differ, but config.json says that they are one: "
            "set tie_word_embeddings to false there"
        )


def _expect_shapes(one: MatchedRow, shape: Shape, tensors: ForeignTensors) -> None:
    for name, expected in zip(one.names, one.row.transform.shapes(shape), strict=True):
        found = tensors.shapes[name]
        if found != expected:
            raise DataError(
                f"{name} is {list(found)}, but config.json makes it {list(expected)}: they do not belong together"
            )
        if tensors.dtype_of(name) not in WEIGHT_TYPES:
            kind = str(tensors.dtype_of(name)).removeprefix("torch.")
            raise DataError(f"{name} holds {kind}, but weights are floating-point numbers of 16 bits or more")
