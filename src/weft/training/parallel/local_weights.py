"""Weights of which this process holds a part: the model's code reads its own part, everyone else the DTensor.

A module whose weights are DTensors becomes of a class that gives out tensors when its code says `self.weight`; in
`parameters()`, `state_dict()` and for optimizers the weights stay DTensors. So model code is as it was, and every
kernel sees plain tensors of local heads and hidden units.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.distributed.tensor import DTensor

from weft.training.parallel.collectives import gather_rows, sum_gradients
from weft.training.parallel.tensor_splits import View

VIEWS = "_weft_views"


@dataclass
class Reading:
    """Over which group weights are split, and whether the model's code reads them by now.

    FSDP reads them by their names too, once, when it is first called: then it must find DTensors.
    """

    group: ProcessGroup
    active: bool = True


def give_out_local(module: nn.Module, views: Mapping[str, View], reading: Reading) -> None:
    """Make `module` read its own weights by these views; in place."""
    kind = _LocalRecurrent if isinstance(module, nn.RNNBase) else _Local
    own = type(module)
    object.__setattr__(module, VIEWS, (dict(views), reading))
    module.__class__ = type(own.__name__, (kind, own), {})


class _Local(nn.Module):
    def __getattr__(self, name: str) -> Any:
        found = super().__getattr__(name)
        if not isinstance(found, DTensor):
            return found
        views, reading = self.__dict__[VIEWS]
        return local_tensor(found, views[name], reading.group) if reading.active else found


class _LocalRecurrent(_Local):
    """torch keeps the weights of its recurrent nets in a list beside the parameters: here it is made at each call."""

    @property
    def _flat_weights(self) -> list[Tensor]:
        return [getattr(self, name) for name in self._flat_weights_names]

    def _update_flat_weights(self) -> None:
        """Nothing to keep up to date."""


def local_tensor(weight: DTensor, view: View, group: ProcessGroup) -> Tensor:
    """What this process sees of a weight."""
    local: Tensor = weight.to_local(grad_placements=weight.placements)
    if view == "table":
        return gather_rows(local, group)
    if view in ("partial", "once"):
        local = sum_gradients(local, group)
    return local * float(group.rank() == 0) if view == "once" else local
