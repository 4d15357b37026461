"""Low-rank adapters: fine-tuning that learns two thin matrices beside each weight and leaves the weight alone.

y = x W^T + b + (alpha / R) x A^T B^T,   A [R, in] drawn from a Gaussian, B [out, R] zero at first   (Hu et al. 2021)

So the adapted model begins as the model that it adapts, and W + (alpha / R) B A is an ordinary weight in the end.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weft.foundation.errors import WeftError
from weft.parts.stack import Stack

ADAPTERS = ("first", "second")  # the names of A and B in a state dict


class AdaptedLinear(nn.Linear):
    """A linear map with a frozen weight and an adapter; `resting` while its weight holds the adapter already."""

    def __init__(self, linear: nn.Linear, rank: int, alpha: float, random: torch.Generator | None = None) -> None:
        super().__init__(linear.in_features, linear.out_features, linear.bias is not None, device="meta")
        self.kind, self.scale, self.resting = type(linear), alpha / rank, False
        self.weight, self.bias = linear.weight, linear.bias
        normal_parameter = torch.randn(rank, self.in_features, generator=random) * self.in_features**-0.5
        self.first = nn.Parameter(normal_parameter.to(linear.weight))
        self.second = nn.Parameter(linear.weight.new_zeros(self.out_features, rank))
        for weight in linear.parameters():
            weight.requires_grad_(False)

    def update(self) -> Tensor:
        """(alpha / R) B A, what the adapter adds to W."""
        return self.scale * (self.second @ self.first)

    def forward(self, x: Tensor) -> Tensor:
        """[..., in] -> [..., out]."""
        y = F.linear(x, self.weight, self.bias)
        return y if self.resting else y + self.scale * F.linear(F.linear(x, self.first), self.second)

    @torch.no_grad()
    def merged(self) -> nn.Linear:
        """The ordinary linear map with W + (alpha / R) B A."""
        plain = self.kind(self.in_features, self.out_features, self.bias is not None, device="meta")
        plain.weight = nn.Parameter(self.weight.detach() + (0 if self.resting else self.update()))
        plain.bias = None if self.bias is None else nn.Parameter(self.bias.detach())
        return plain.train(self.training)


def adapt(
    model: nn.Module, rank: int, alpha: float | None = None, seed: int = 0, whole: tuple[str, ...] = ()
) -> nn.Module:
    """Put an adapter of this rank beside every linear map inside the blocks, and freeze all else; in place.

    `alpha` is 2 R if not given. Submodules named in `whole` learn with all their weights: a head for new classes.
    """
    found = [(stack, name) for stack in model.modules() if isinstance(stack, Stack) for name in _linears(stack)]
    if not found:
        raise WeftError("this model has no linear maps inside blocks to adapt: leave --lora out, all of it then learns")
    if rank < 1:
        raise WeftError(f"adapters of rank {rank}: give 1 or more")
    for weight in model.parameters():
        weight.requires_grad_(False)
    random = torch.Generator().manual_seed(seed)
    for stack, name in found:
        parent, _, own = name.rpartition(".")
        linear = stack.get_submodule(name)
        assert isinstance(linear, nn.Linear)
        adapted = AdaptedLinear(linear, rank, 2.0 * rank if alpha is None else alpha, random)
        setattr(stack.get_submodule(parent), own, adapted.train(linear.training))
    for name in whole:
        model.get_submodule(name).requires_grad_(True)
    return model


def _linears(stack: Stack) -> list[str]:
    """The names of the plain linear maps of a stack's blocks."""
    named = stack.named_modules()
    return [name for name, part in named if isinstance(part, nn.Linear) and not isinstance(part, AdaptedLinear)]


def adapters(model: nn.Module) -> list[tuple[str, AdaptedLinear]]:
    """All adapted maps of a model with their names."""
    return [(name, part) for name, part in model.named_modules() if isinstance(part, AdaptedLinear)]


def merge(model: nn.Module) -> nn.Module:
    """Take the adapters into the weights, for good: an ordinary model, all of which can learn again; in place."""
    for name, part in adapters(model):
        parent, _, own = name.rpartition(".")
        setattr(model.get_submodule(parent), own, part.merged())
    for weight in model.parameters():
        weight.requires_grad_(True)
    return model


@torch.no_grad()
def merged_state(model: nn.Module, state: Mapping[str, Tensor] | None = None) -> dict[str, Tensor]:
    """The state dict of the merged model; the model itself stays as it is. Without adapters, its own.

    `state`: the model's weights, where the model itself holds only parts of them.
    """
    found = dict(model.state_dict() if state is None else state)
    for name, part in adapters(model):
        first, second = (found.pop(f"{name}.{adapter}") for adapter in ADAPTERS)
        if not part.resting:
            found[f"{name}.weight"] = found[f"{name}.weight"] + part.scale * (second @ first)
    return found


@contextlib.contextmanager
def merged(model: nn.Module) -> Iterator[nn.Module]:
    """While this lasts the weights hold the adapters, for whatever reads a weight itself; then all is as before."""
    found = [part for _, part in adapters(model)]
    kept = [part.weight.detach().clone() for part in found]
    with torch.no_grad():
        for part in found:
            part.weight.add_(part.update())
            part.resting = True
    try:
        yield model
    finally:
        with torch.no_grad():
            for part, before in zip(found, kept, strict=True):
                part.weight.copy_(before)
                part.resting = False


__all__ = ["AdaptedLinear", "adapt", "adapters", "merge", "merged", "merged_state"]
