"""The training state as flat tensors: weights, moments of the optimizers, averaged weights; and back."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from weft.foundation.atomic_files import DiskError
from weft.training.averaging import MovingAverage


def gather_state(
    module: nn.Module, optimizers: Sequence[Optimizer], average: MovingAverage | None
) -> dict[str, Tensor]:
    """The state under the names `weight.NAME`, `optimizer.NUMBER.NAME.MOMENT` and `average.NAME`."""
    tensors = {f"weight.{name}": tensor for name, tensor in module.state_dict().items()}
    names = {id(weight): name for name, weight in module.named_parameters()}
    for number, optimizer in enumerate(optimizers):
        for weight, moments in optimizer.state.items():
            for moment, value in moments.items():
                tensors[f"optimizer.{number}.{names[id(weight)]}.{moment}"] = torch.as_tensor(value)
    if average is not None:
        tensors |= {f"average.{name}": tensor for name, tensor in average.shadow.items()}
    return tensors


def restore_state(
    tensors: dict[str, Tensor], module: nn.Module, optimizers: Sequence[Optimizer], average: MovingAverage | None
) -> None:
    """The inverse of `gather_state`: load the tensors into module, optimizers and average."""
    weights = {name.removeprefix("weight."): tensor for name, tensor in tensors.items() if name.startswith("weight.")}
    try:
        module.load_state_dict(weights)
    except RuntimeError:
        raise DiskError("the training state belongs to another model: resume with the options of the run") from None
    named = dict(module.named_parameters())
    for name, tensor in tensors.items():
        if name.startswith("optimizer."):
            _, number, rest = name.split(".", 2)
            weight, _, moment = rest.rpartition(".")
            place = optimizers[int(number)].state[named[weight]]
            place[moment] = tensor.clone() if moment == "step" else tensor.to(named[weight].device, copy=True)
    if average is not None:
        average.shadow = {
            name.removeprefix("average."): tensor.clone().to(named[name.removeprefix("average.")].device)
            for name, tensor in tensors.items()
            if name.startswith("average.")
        }
