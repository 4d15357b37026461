"""Specs of positions: at the first layer, inside attention, or on an image grid; each with its own builder.

Other packages add kinds: a subclass of `PositionSpec` with its `kind`, in the entry points `weft.positions`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, PositiveFloat, PositiveInt, SerializeAsAny, model_validator
from torch import nn

from weft.foundation.plugins import Registry
from weft.foundation.spec import Spec
from weft.parts.grid_positions import Grid, GridAxes, GridSinusoids, GridTable
from weft.parts.positions import Join, Layout, LearnedPositions, SinusoidalPositions
from weft.parts.relative import (
    NTK,
    Alibi,
    AttentionPosition,
    BucketedBias,
    Linear,
    Llama3,
    RelativeKeysAndValues,
    RelativeScale,
    RelativeVectors,
    Rotary,
    Scaling,
    YaRN,
)

Nature = Literal["none", "absolute", "relative"]


@dataclass(frozen=True)
class HeadSizes:
    """Of the attention that a position acts in: H, D_K and D_V."""

    heads: int
    key_width: int
    value_width: int


class PositionSpec(Spec):
    """What the kinds share: most act in one place only. `kind` is the name that a spec gives them by."""

    kind: str

    def nature(self) -> Nature:
        """What a model with these positions declares."""
        return "relative"

    def own_width(self) -> int:
        """How much of D is the positions' own (when they are concatenated)."""
        return 0

    def build_input(self, length: int, width: int) -> nn.Module | None:
        """What is added or concatenated at the first layer."""
        return None

    def build_attention(self, heads: int, head_width: int, causal: bool) -> AttentionPosition | None:
        """What acts inside attention."""
        return None

    def acts_on_values(self) -> bool:
        """Whether it acts on values, too, so that D_V counts."""
        return False

    def build_inside(self, sizes: HeadSizes, causal: bool) -> AttentionPosition | None:
        """`build_attention` for heads of these sizes; a kind that acts on values overrides it."""
        return self.build_attention(sizes.heads, sizes.key_width, causal)


class NoPositionsSpec(PositionSpec):
    """None: a sequence is a set, but for what masks and mixers know of order."""

    kind: Literal["none"] = "none"

    def nature(self) -> Nature:
        return "none"


class LearnedSpec(PositionSpec):
    """A learned table of `length` vectors, added, or concatenated in `width` coordinates of their own."""

    kind: Literal["learned"] = "learned"
    join: Join = "add"
    width: PositiveInt | None = None

    def nature(self) -> Nature:
        return "absolute"

    def own_width(self) -> int:
        return (self.width or 16) if self.join == "concatenate" else 0

    def build_input(self, length: int, width: int) -> nn.Module:
        return LearnedPositions(length, self.own_width() or width, self.join)


class SinusoidalSpec(PositionSpec):
    """Sinusoids, added, or concatenated in `width` coordinates of their own; `layout` orders sines and cosines."""

    kind: Literal["sinusoidal"] = "sinusoidal"
    join: Join = "add"
    width: PositiveInt | None = None
    layout: Layout = "interleaved"

    def nature(self) -> Nature:
        return "absolute"

    def own_width(self) -> int:
        return (self.width or 16) if self.join == "concatenate" else 0

    def build_input(self, length: int, width: int) -> nn.Module:
        return SinusoidalPositions(self.own_width() or width, self.join, self.layout)


class RelativeVectorsSpec(PositionSpec):
    """A learned vector for each distance up to `reach`, added to keys, and others to values where `values` is set.

    `scale`: q.a has the score's own scale, or 1/sqrt(D_K) whatever the score ("width", as in older runs).
    """

    kind: Literal["relative"] = "relative"
    reach: PositiveInt = 16
    values: bool = False
    scale: RelativeScale = "score"

    def acts_on_values(self) -> bool:
        return self.values

    def build_attention(self, heads: int, head_width: int, causal: bool) -> AttentionPosition:
        return self.build_inside(HeadSizes(heads, head_width, head_width), causal)

    def build_inside(self, sizes: HeadSizes, causal: bool) -> AttentionPosition:
        if self.values:
            return RelativeKeysAndValues(sizes.key_width, sizes.value_width, self.reach, self.scale)
        return RelativeVectors(sizes.key_width, self.reach, self.scale)


class BucketedSpec(PositionSpec):
    """A learned number for each head and bucket of distances (T5)."""

    kind: Literal["bucketed"] = "bucketed"
    buckets: Annotated[int, Field(ge=4)] = 32
    farthest: PositiveInt = 128

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.farthest <= self.buckets // 2:
            raise ValueError(
                f"positions.farthest {self.farthest} lies within the exact half of positions.buckets {self.buckets}: "
                f"raise it above {self.buckets // 2}"
            )
        return self

    def build_attention(self, heads: int, head_width: int, causal: bool) -> AttentionPosition:
        return BucketedBias(heads, self.buckets, self.farthest, both_ways=not causal)


class AlibiSpec(PositionSpec):
    """A penalty on distance."""

    kind: Literal["alibi"] = "alibi"

    def build_attention(self, heads: int, head_width: int, causal: bool) -> AttentionPosition:
        return Alibi(heads)


class LinearScalingSpec(Spec):
    """Positions divided by `factor`."""

    kind: Literal["linear"] = "linear"
    factor: PositiveFloat

    def build(self) -> Scaling:
        return Linear(self.factor)


class NTKScalingSpec(Spec):
    """A larger base."""

    kind: Literal["ntk"] = "ntk"
    factor: PositiveFloat

    def build(self) -> Scaling:
        return NTK(self.factor)


class Llama3ScalingSpec(Spec):
    """Long waves stretched, short ones kept."""

    kind: Literal["llama3"] = "llama3"
    factor: PositiveFloat = 8.0
    low: PositiveFloat = 1.0
    high: PositiveFloat = 4.0
    original: PositiveInt = 8192

    def build(self) -> Scaling:
        return Llama3(self.factor, self.low, self.high, self.original)


class YaRNScalingSpec(Spec):
    """Slow waves stretched, fast ones kept, scores grown; see `weft.parts.relative.YaRN`."""

    kind: Literal["yarn"] = "yarn"
    factor: PositiveFloat
    original: PositiveInt
    fast: PositiveFloat = 32.0
    slow: PositiveFloat = 1.0
    rounded: bool = True
    magnitude: PositiveFloat | None = None

    def build(self) -> Scaling:
        return YaRN(self.factor, self.original, self.fast, self.slow, self.rounded, self.magnitude)


ScalingSpec = Annotated[
    LinearScalingSpec | NTKScalingSpec | Llama3ScalingSpec | YaRNScalingSpec, Field(discriminator="kind")
]


class RotarySpec(PositionSpec):
    """Queries and keys turn with their position; `fraction` of each head's coordinates."""

    kind: Literal["rotary"] = "rotary"
    base: PositiveFloat = 10_000.0
    fraction: Annotated[float, Field(gt=0, le=1)] = 1.0
    scaling: ScalingSpec | None = None

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if isinstance(self.scaling, YaRNScalingSpec) and self.base <= 1:
            raise ValueError(f"positions.base {self.base:g}: YaRN counts turns by powers of the base; raise it above 1")
        return self

    def build_attention(self, heads: int, head_width: int, causal: bool) -> Rotary:
        return Rotary(head_width, self.base, self.fraction, None if self.scaling is None else self.scaling.build())


POSITIONS: Registry[type[PositionSpec]] = Registry(
    "weft.positions",
    "position",
    {
        spec.model_fields["kind"].default: spec
        for spec in (
            NoPositionsSpec, LearnedSpec, SinusoidalSpec, RelativeVectorsSpec, BucketedSpec, AlibiSpec, RotarySpec,
        )
    },
)  # fmt: skip


def _read_position(value: Any) -> Any:
    if isinstance(value, PositionSpec):
        return value
    kind = value.get("kind") if isinstance(value, Mapping) else None
    if not isinstance(kind, str) or kind not in POSITIONS:
        raise ValueError(f"there is no position {kind!r}: choose a kind of {', '.join(POSITIONS)}")
    spec = POSITIONS[kind]
    if not (isinstance(spec, type) and issubclass(spec, PositionSpec) and spec.model_fields["kind"].default == kind):
        raise ValueError(f"position {kind!r} is not a PositionSpec of that kind: fix the package that adds it")
    return spec(**value)


AnyPositionSpec = Annotated[SerializeAsAny[PositionSpec], BeforeValidator(_read_position)]


class NoGridSpec(Spec):
    """None: a bag of patches."""

    kind: Literal["none"] = "none"

    def build(self, grid: Grid, width: int, extra: int) -> None:
        return None


class GridTableSpec(Spec):
    """One learned vector per cell, as in the vision transformer."""

    kind: Literal["grid-table"] = "grid-table"

    def build(self, grid: Grid, width: int, extra: int) -> nn.Module:
        return GridTable(grid, width, extra)


class GridAxesSpec(Spec):
    """Learned 2-D: a vector for the row plus one for the column."""

    kind: Literal["grid-axes"] = "grid-axes"

    def build(self, grid: Grid, width: int, extra: int) -> nn.Module:
        return GridAxes(grid, width, extra)


class GridSinusoidsSpec(Spec):
    """Sinusoids of row and column."""

    kind: Literal["grid-sinusoids"] = "grid-sinusoids"

    def build(self, grid: Grid, width: int, extra: int) -> nn.Module:
        return GridSinusoids(width, extra)


GridSpec = Annotated[NoGridSpec | GridTableSpec | GridAxesSpec | GridSinusoidsSpec, Field(discriminator="kind")]


def old_relative_scale(tree: Any) -> Any:
    """The tree of version 2 with relative vectors scaled as they were then: by 1/sqrt(D_K), whatever the score."""
    if isinstance(tree, list):
        return [old_relative_scale(value) for value in tree]
    if not isinstance(tree, dict):
        return tree
    tree = {name: old_relative_scale(value) for name, value in tree.items()}
    positions = tree.get("positions")
    if isinstance(positions, dict) and positions.get("kind") == "relative" and not _scaled_dots(tree.get("mixer")):
        tree["positions"] = {**positions, "scale": "width"}
    return tree


def _scaled_dots(mixer: Any) -> bool:
    """Whether all of a tree's mixers score by q.k / sqrt(D_K), where both rules say the same."""
    mixers = mixer if isinstance(mixer, list) else [mixer]
    return all(one.get("score", "scaled-dot") == "scaled-dot" for one in mixers if isinstance(one, dict))
