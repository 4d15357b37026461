"""Positions inside attention: they depend on distances i - j only, so shifting a sequence changes nothing.

Three steps of attention may use them: `rotate` turns queries and keys (rotary), `bias` adds to the scores (ALiBi, T5,
relative vectors), `value_bias` adds to what is gathered (relative vectors on the side of values). They come with the
`AttentionContext`, so that angles are computed once for all layers.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from weft.foundation.errors import ShapeError
from weft.foundation.matrix_products import MatrixProduct, Products, ProductView
from weft.foundation.numerics import wide
from weft.parts.parameters import normal_parameter
from weft.parts.token_positions import TokenPositions, distances

RotaryAngles = tuple[Tensor, Tensor]


class AttentionPosition(nn.Module):
    """What a relative position does inside attention; each step may be left as it is.

    `scaled_by_score`: whether `bias` is given the query as the score compares it with keys, mapped and scaled.
    """

    scaled_by_score: bool = False

    @property
    def acts_on_scores(self) -> bool:
        """Whether it has a `bias`."""
        return type(self).bias is not AttentionPosition.bias

    @property
    def acts_on_values(self) -> bool:
        """Whether it has a `value_bias`, which takes the weights."""
        return type(self).value_bias is not AttentionPosition.value_bias

    def angles(self, positions: Tensor, dtype: torch.dtype) -> RotaryAngles | None:
        """(cos, sin), each [B, 1, T, R], by which queries and keys at these positions turn."""
        return None

    def angles_of(self, token_positions: TokenPositions, dtype: torch.dtype) -> RotaryAngles | None:
        """`angles` of tokens at these positions."""
        return self.angles(token_positions.positions, dtype)

    def bias(self, query: Tensor, queries: TokenPositions, keys: TokenPositions) -> Tensor | None:
        """What is added to the scores, broadcastable to [B, H, T, S]."""
        return None

    def value_bias(self, weights: Tensor, queries: TokenPositions, keys: TokenPositions) -> Tensor | None:
        """What is added to Y, [B, H, T, V], for the weights A [B, H, T, S]."""
        return None

    def matrix_products(self, view: ProductView, heads: int) -> Products:
        """What it multiplies for one sequence."""
        return ()


class Scaling(ABC):
    """How rotary frequencies are stretched to reach farther than trained."""

    @abstractmethod
    def frequencies(self, base: float, width: int, like: Tensor) -> Tensor:
        """The frequencies theta_i, i = 0, 2, .. width - 2."""

    def amplitude(self) -> float:
        """What turned queries and keys are multiplied with, each."""
        return 1.0


def rotary_frequencies(base: float, width: int, like: Tensor) -> Tensor:
    """theta_i = base^(-i/R), i = 0, 2, .. R - 2, in the type of `like`."""
    i = torch.arange(0, width, 2, device=like.device, dtype=like.dtype)
    return 1.0 / base ** (i / width)


@dataclass(frozen=True)
class Unscaled(Scaling):
    """Frequencies as trained."""

    def frequencies(self, base: float, width: int, like: Tensor) -> Tensor:
        return rotary_frequencies(base, width, like)


@dataclass(frozen=True)
class Linear(Scaling):
    """Positions are divided by a factor (Chen et al. 2023)."""

    factor: float

    def frequencies(self, base: float, width: int, like: Tensor) -> Tensor:
        """theta_i / factor."""
        return rotary_frequencies(base, width, like) / self.factor


@dataclass(frozen=True)
class NTK(Scaling):
    """The base grows so that slow frequencies stretch and fast ones stay: base * factor^(R/(R-2))."""

    factor: float

    def frequencies(self, base: float, width: int, like: Tensor) -> Tensor:
        """theta_i of the larger base."""
        return rotary_frequencies(base * self.factor ** (width / max(width - 2, 1)), width, like)


@dataclass(frozen=True)
class Llama3(Scaling):
    """Long waves are stretched by `factor`, short ones kept, a smooth step between (Llama 3.1)."""

    factor: float = 8.0
    low: float = 1.0
    high: float = 4.0
    original: int = 8192

    def frequencies(self, base: float, width: int, like: Tensor) -> Tensor:
        """theta_i * (1 - s) / factor + theta_i * s, s = clamp((n / wavelength - low) / (high - low), 0, 1)."""
        theta = rotary_frequencies(base, width, like)
        waves = self.original * theta / (2 * math.pi)
        smooth = ((waves - self.low) / (self.high - self.low)).clamp(0, 1)
        return theta * ((1 - smooth) / self.factor + smooth)


@dataclass(frozen=True)
class YaRN(Scaling):
    """Waves that turn fewer than `slow` times in the `original` length are stretched by `factor`, those that turn more
    than `fast` times are kept, a linear ramp between; scores grow by m^2, m = 0.1 ln(factor) + 1 (Peng et al. 2023).

    `rounded`: whether the ramp's ends are whole coordinates; `magnitude`: m, where it is not the paper's.
    """

    factor: float
    original: int
    fast: float = 32.0
    slow: float = 1.0
    rounded: bool = True
    magnitude: float | None = None

    def frequencies(self, base: float, width: int, like: Tensor) -> Tensor:
        """theta_i * (1 - r_i) + theta_i / factor * r_i, r_i = clamp((i/2 - low) / (high - low), 0, 1)."""
        theta = rotary_frequencies(base, width, like)
        low, high = (self._coordinate(turns, base, width) for turns in (self.fast, self.slow))
        if self.rounded:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, width - 1)
        pair = torch.arange(width // 2, device=like.device, dtype=like.dtype)
        ramp = ((pair - low) / (high - low if high != low else 0.001)).clamp(0, 1)
        return theta * (1 - ramp) + theta / self.factor * ramp

    def _coordinate(self, turns: float, base: float, width: int) -> float:
        """The pair of coordinates whose wave turns so many times in the original length."""
        return width * math.log(self.original / (turns * 2 * math.pi)) / (2 * math.log(base))

    def amplitude(self) -> float:
        """The factor m on queries and keys, by which scores grow m^2 times."""
        return 0.1 * math.log(max(self.factor, 1.0)) + 1.0 if self.magnitude is None else self.magnitude


def rotate_pairs(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the first R coordinates of x [B, H, T, K], as R/2 pairs (x_i, x_(i+R/2)), by the angles t theta_i.

    `sin` has the sign of its place already: -sin for the first of a pair, +sin for the second.
    """
    R = cos.shape[-1]
    if x.shape[2] == 1 and x.shape[3] == R:
        return torch.addcmul(x * cos, x.roll(R // 2, -1), sin)
    turned = x[..., :R]
    a, b = turned.chunk(2, dim=-1)
    turned = torch.addcmul(turned * cos, torch.cat((b, a), dim=-1), sin)
    return turned if x.shape[-1] == R else torch.cat((turned, x[..., R:]), dim=-1)


class Rotary(AttentionPosition):
    """q_i^T k_j of turned queries and keys depends on i - j only (Su et al. 2021).

    `fraction`: the share of the head's coordinates that turn; `scaling`: how it reaches past its trained length.
    """

    def __init__(
        self, head_width: int, base: float = 10_000.0, fraction: float = 1.0, scaling: Scaling | None = None
    ) -> None:
        super().__init__()
        self.width = int(head_width * fraction)
        if self.width < 2 or self.width % 2:
            raise ShapeError(
                f"rotary positions rotate pairs, but {fraction:g} of a head of {head_width} is {self.width}: "
                "choose an even number of at least 2"
            )
        self.base, self.scaling = base, scaling or Unscaled()
        self._tables: dict[tuple[torch.device, torch.dtype], RotaryAngles] = {}

    def angles_of(self, token_positions: TokenPositions, dtype: torch.dtype) -> RotaryAngles:
        """Tokens that follow one another are looked up in the table: decoding asks at each step."""
        if token_positions.start is None or token_positions.given is not None or torch.compiler.is_compiling():
            return self.angles(token_positions.positions, dtype)
        first, last = token_positions.start, token_positions.start + token_positions.length
        cos, sin = self.table(last, token_positions.device, dtype)
        return cos[:, :, first:last], sin[:, :, first:last]

    def table(self, length: int, device: torch.device, dtype: torch.dtype) -> RotaryAngles:
        """The angles of positions 0 .. length - 1, [1, 1, length or more, R]; kept, and made longer when needed."""
        key = (device, dtype)
        if key not in self._tables or self._tables[key][0].shape[2] < length:
            longer = 1 << max(length - 1, 63).bit_length()
            with torch.inference_mode(False):
                self._tables[key] = self.angles(torch.arange(longer, device=device)[None], dtype)
        return self._tables[key]

    def angles(self, positions: Tensor, dtype: torch.dtype) -> RotaryAngles:
        """(cos t theta_i, -sin t theta_i and sin t theta_i), for the first and the second of each pair; scaled."""
        t = positions.to(wide(dtype))
        angle = t[:, None, :, None] * self.scaling.frequencies(self.base, self.width, t)
        amplitude = self.scaling.amplitude()
        cos, sin = angle.cos() * amplitude, angle.sin() * amplitude
        return torch.cat((cos, cos), dim=-1).to(dtype), torch.cat((-sin, sin), dim=-1).to(dtype)


def alibi_slopes(heads: int) -> Tensor:
    """One slope per head: 2^(-8h/H) for a power of two; else those of the next lower power and every other between."""
    power = 2 ** math.floor(math.log2(heads))
    slopes = [2.0 ** (-8 * (h + 1) / power) for h in range(power)]
    slopes += [2.0 ** (-4 * (2 * h + 1) / power) for h in range(heads - power)]
    return torch.tensor(slopes)


class Alibi(AttentionPosition):
    """e_ij - m_h |i - j|: far keys count less, each head at its own rate (Press et al. 2022)."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.heads = heads

    def bias(self, query: Tensor, queries: TokenPositions, keys: TokenPositions) -> Tensor:
        """[B or 1, H, T, S]."""
        distance = distances(queries, keys).abs()[:, None]
        slopes = alibi_slopes(self.heads).to(query)
        return -slopes[:, None, None] * distance.to(query.dtype)


def t5_buckets(distance: Tensor, buckets: int, farthest: int, both_ways: bool) -> Tensor:
    """Distances j - i into buckets: exact when near, logarithmic up to `farthest`, one for all beyond (T5)."""
    bucket = torch.zeros_like(distance)
    if both_ways:
        buckets //= 2
        bucket = (distance > 0).long() * buckets
        distance = distance.abs()
    else:
        distance = (-distance).clamp(min=0)
    exact = buckets // 2
    far = torch.log(distance.clamp(min=1).float() / exact) / math.log(farthest / exact) * (buckets - exact)
    far = (exact + far.long()).clamp(max=buckets - 1)
    return bucket + torch.where(distance < exact, distance, far)


class BucketedBias(AttentionPosition):
    """e_ij + b_(h, bucket(j - i)): one learned number per head and bucket, for all layers (Raffel et al. 2020)."""

    def __init__(self, heads: int, buckets: int = 32, farthest: int = 128, both_ways: bool = True) -> None:
        super().__init__()
        self.buckets, self.farthest, self.both_ways = buckets, farthest, both_ways
        self.table = normal_parameter(buckets, heads)

    def bias(self, query: Tensor, queries: TokenPositions, keys: TokenPositions) -> Tensor:
        """[B or 1, H, T, S]."""
        bucket = t5_buckets(-distances(queries, keys), self.buckets, self.farthest, self.both_ways)
        return self.table[bucket].permute(0, 3, 1, 2)


RelativeScale = Literal["score", "width"]


class RelativeVectors(AttentionPosition):
    """e_ij = s q_i^T (k_j + a_(j-i)), a learned vector for each distance clipped to +-reach (Shaw et al. 2018).

    s is the score's own scale: 1/sqrt(D_K), or 1 for a plain dot product; `scale` "width" takes 1/sqrt(D_K) for a,
    whatever the score.
    """

    def __init__(self, head_width: int, reach: int = 16, scale: RelativeScale = "score") -> None:
        super().__init__()
        self.reach, self.scaled_by_score = reach, scale == "score"
        self.table = normal_parameter(2 * reach + 1, head_width, std=head_width**-0.5)

    def bias(self, query: Tensor, queries: TokenPositions, keys: TokenPositions) -> Tensor:
        """[B, H, T, S]; each query meets each of the 2 reach + 1 vectors once, then pairs look theirs up."""
        query = query if self.scaled_by_score else query * query.shape[-1] ** -0.5
        met_BHTR = query @ self.table.T
        return met_BHTR.gather(-1, self._index(queries, keys).expand(*query.shape[:3], -1))

    def _index(self, queries: TokenPositions, keys: TokenPositions) -> Tensor:
        """Which vector each pair has, [B or 1, 1, T, S]."""
        return ((-distances(queries, keys)).clamp(-self.reach, self.reach) + self.reach)[:, None]

    def matrix_products(self, view: ProductView, heads: int) -> Products:
        """Each query with each distance's vector."""
        count, K = self.table.shape
        return (MatrixProduct("distances", "Q a^T", view.queries, K, count, heads),)


class RelativeKeysAndValues(RelativeVectors):
    """Relative vectors on both sides: y_i = sum_j A_ij (v_j + b_(j-i)), too (Shaw et al. 2018, equation 3)."""

    def __init__(
        self, head_width: int, value_width: int | None = None, reach: int = 16, scale: RelativeScale = "score"
    ) -> None:
        super().__init__(head_width, reach, scale)
        V = value_width or head_width
        self.value_table = normal_parameter(2 * reach + 1, V, std=V**-0.5)

    def value_bias(self, weights: Tensor, queries: TokenPositions, keys: TokenPositions) -> Tensor:
        """[B, H, T, V]; the weights of keys at one distance are added first, then meet its vector."""
        sums_BHTR = weights.new_zeros(*weights.shape[:3], len(self.value_table))
        index = self._index(queries, keys).expand_as(weights)
        return sums_BHTR.scatter_add(-1, index, weights) @ self.value_table

    def matrix_products(self, view: ProductView, heads: int) -> Products:
        count, V = self.value_table.shape
        values = MatrixProduct("distance values", "A b, by distance", view.queries, count, V, heads)
        return (*super().matrix_products(view, heads), values)
