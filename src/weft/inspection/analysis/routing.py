"""Expert routing: which experts each token is sent to, and with which gates."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from weft.foundation.errors import WeftError
from weft.inference.fast.optimized import parts_only
from weft.inspection.recording.calling import module_of
from weft.parts.experts import Experts
from weft.parts.observer import Observer, observing


@dataclass
class Routed:
    """For each layer with experts, the experts chosen in the last forward and their gates, (B, T, A)."""

    paths: list[str]
    experts: dict[int, int] = field(default_factory=dict)
    kept: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)

    @property
    def layers(self) -> list[int]:
        """The layers that have run, counted among those with experts."""
        return sorted(self.kept)

    def chosen(self, layer: int) -> Tensor:
        """(B, T, A): the numbers of the experts, best first."""
        return self._of(layer)[0]

    def gates(self, layer: int) -> Tensor:
        """(B, T, A): the weight of each chosen expert; they sum to one."""
        return self._of(layer)[1]

    def shares(self, layer: int) -> Tensor:
        """(E): each expert's share of all choices; 1 / E when balanced."""
        counts = torch.bincount(self.chosen(layer).flatten(), minlength=self.experts[layer])
        return counts / counts.sum().clamp(min=1)

    def _of(self, layer: int) -> tuple[Tensor, Tensor]:
        if layer not in self.kept:
            known = ", ".join(map(str, self.layers)) or "none has run"
            raise WeftError(f"there is no layer {layer} of experts: choose one of {known}")
        return self.kept[layer]


class _RoutingObserver(Observer):
    """Keeps the choices of a model's routers."""

    def __init__(self, found: Routed, parts: list[Experts]) -> None:
        self.found, self.layers = found, {id(part): layer for layer, part in enumerate(parts)}

    def on_experts(self, part: nn.Module, x: Tensor, gates: Tensor, chosen: Tensor) -> None:
        layer = self.layers.get(id(part))
        if layer is not None:
            size = (*x.shape[:-1], chosen.shape[-1])
            self.found.kept[layer] = (chosen.detach().view(size), gates.detach().view(size))


@contextmanager
def routed(subject: Any) -> Iterator[Routed]:
    """Keep which experts any forward inside chooses."""
    module = module_of(subject)
    parts = [(path, part) for path, part in module.named_modules() if isinstance(part, Experts)]
    if not parts:
        raise WeftError("this model has no experts: build one with feedforward.kind experts, such as nano-moe")
    found = Routed([path for path, _ in parts], {layer: part.experts for layer, (_, part) in enumerate(parts)})
    with parts_only(module), observing(_RoutingObserver(found, [part for _, part in parts])):
        yield found
