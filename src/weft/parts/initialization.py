"""Initialization, all of it, in one place.

- `Normal(std)`: weights N(0, std^2); linear maps into the residual stream N(0, std^2 / 2L), so that the stream's
  variance does not grow with depth L (GPT-2);
- `Xavier`: weights uniform in +-sqrt(6 / (fan_in + fan_out)) (Glorot and Bengio 2010; the original transformer);
- `FanIn`: weights N(0, 1 / fan_in): keeps a unit scale through each linear map;
- with `zero_residual` the linear maps into the residual stream start at zero: a pre-norm model starts as the identity.

Embeddings and learned positions are normal, biases zero, norms one (beta zero), recurrent nets uniform in +-1/sqrt(h).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from weft.parts.embeddings import ClassToken, Registers, SegmentEmbedding, TokenEmbedding
from weft.parts.experts import Experts
from weft.parts.grid_positions import GridAxes, GridTable
from weft.parts.linear import ResidualLinear
from weft.parts.norms import NoNorm, Norm
from weft.parts.positions import LearnedPositions
from weft.parts.relative import BucketedBias, RelativeVectors
from weft.parts.scores import Score
from weft.parts.stack import Stack


@dataclass(frozen=True)
class Scheme:
    """How weights start. `embedding` is the deviation of embeddings and positions."""

    embedding: float = 0.02
    zero_residual: bool = False

    def fill(self, weight: Tensor, fan_in: int, fan_out: int, random: torch.Generator) -> None:
        raise NotImplementedError

    def residual_scale(self, layers: int) -> float:
        """What weights into the residual stream are multiplied with; `layers` counts blocks."""
        return 0.0 if self.zero_residual else 1.0


@dataclass(frozen=True)
class Normal(Scheme):
    """N(0, std^2), into the residual stream scaled by 1/sqrt(2L) (GPT-2)."""

    std: float = 0.02

    def fill(self, weight: Tensor, fan_in: int, fan_out: int, random: torch.Generator) -> None:
        weight.normal_(0.0, self.std, generator=random)

    def residual_scale(self, layers: int) -> float:
        """1/sqrt(2L): each block adds twice."""
        return 0.0 if self.zero_residual else 1.0 / math.sqrt(2 * max(layers, 1))


@dataclass(frozen=True)
class Xavier(Scheme):
    """Uniform in +-sqrt(6 / (fan_in + fan_out))."""

    def fill(self, weight: Tensor, fan_in: int, fan_out: int, random: torch.Generator) -> None:
        bound = math.sqrt(6 / (fan_in + fan_out))
        weight.uniform_(-bound, bound, generator=random)


@dataclass(frozen=True)
class FanIn(Scheme):
    """N(0, 1 / fan_in)."""

    def fill(self, weight: Tensor, fan_in: int, fan_out: int, random: torch.Generator) -> None:
        weight.normal_(0.0, fan_in**-0.5, generator=random)


@torch.no_grad()
def initialize(model: nn.Module, scheme: Scheme, random: torch.Generator) -> None:
    """Fill every weight of `model` from one generator on the CPU, so that bits depend on the seed alone."""
    layers = max((len(part.blocks) for part in model.modules() if isinstance(part, Stack)), default=0)
    for module in model.modules():
        for kind, fill in _RULES:
            if isinstance(module, kind):
                fill(module, scheme, layers, random)
                break


def _on_cpu(weight: Tensor, fill: Callable[[Tensor], None]) -> None:
    """Draw on the CPU in float32, then bring the numbers to the weight's device and type."""
    if weight.is_meta:
        return
    drawn = torch.empty(weight.shape, dtype=torch.float32)
    fill(drawn)
    weight.copy_(drawn)


def _linear(module: nn.Linear, scheme: Scheme, layers: int, random: torch.Generator) -> None:
    weight = module.weight
    _on_cpu(weight, lambda w: scheme.fill(w, weight.shape[1], weight.shape[0], random))
    if isinstance(module, ResidualLinear):
        weight.mul_(scheme.residual_scale(layers))
    if module.bias is not None:
        module.bias.zero_()


def _convolution(
    module: nn.Conv1d | nn.Conv2d,
    scheme: Scheme,
    layers: int,
    random: torch.Generator,
) -> None:
    fan_in = module.weight[0].numel()
    _on_cpu(module.weight, lambda w: scheme.fill(w, fan_in, module.out_channels, random))
    if module.bias is not None:
        module.bias.zero_()


def _experts(module: Experts, scheme: Scheme, layers: int, random: torch.Generator) -> None:
    for weight in (module.router, module.up, module.down):
        rows, columns = weight.shape[-2:]
        _on_cpu(weight, lambda w, i=columns, o=rows: scheme.fill(w, i, o, random))  # type: ignore[misc]
    module.down.mul_(scheme.residual_scale(layers))


def _tables(module: nn.Module, scheme: Scheme, layers: int, random: torch.Generator) -> None:
    for weight in module.parameters(recurse=False):
        _on_cpu(weight, lambda w: _normal(w, scheme.embedding, random))


def _score(module: Score, scheme: Scheme, layers: int, random: torch.Generator) -> None:
    for weight in module.parameters(recurse=False):
        if weight.dim():  # a single number keeps what the score gave it
            _on_cpu(weight, lambda w: _normal(w, w.shape[-1] ** -0.5, random))


def _recurrent(module: nn.RNNBase, scheme: Scheme, layers: int, random: torch.Generator) -> None:
    bound = module.hidden_size**-0.5
    for weight in module.parameters(recurse=False):
        _on_cpu(weight, lambda w: _uniform(w, bound, random))


def _norm(module: Norm, scheme: Scheme, layers: int, random: torch.Generator) -> None:
    if isinstance(module, NoNorm):
        return
    module.gamma.fill_(module.START)
    beta = getattr(module, "beta", None)
    if beta is not None:
        beta.zero_()


def _normal(weight: Tensor, std: float, random: torch.Generator) -> None:
    weight.normal_(0.0, std, generator=random)


def _uniform(weight: Tensor, bound: float, random: torch.Generator) -> None:
    weight.uniform_(-bound, bound, generator=random)


_TABLES = (
    TokenEmbedding, LearnedPositions, GridTable, GridAxes, ClassToken, Registers, SegmentEmbedding, BucketedBias,
    RelativeVectors,
)  # fmt: skip
_RULES: tuple[tuple[type | tuple[type, ...], Callable[..., None]], ...] = (
    (nn.Linear, _linear),
    ((nn.Conv1d, nn.Conv2d), _convolution),
    (Experts, _experts),
    (nn.RNNBase, _recurrent),
    (Norm, _norm),
    (Score, _score),
    (_TABLES, _tables),
)
