"""The training state as flat tensors: weights, moments of the optimizers, averaged weights; and back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from weft.foundation.files.atomic_files import DiskError
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


def parameter_of(name: str) -> str:
    """The parameter or buffer that a tensor of the state belongs to."""
    kind, _, rest = name.partition(".")
    return rest.partition(".")[2].rpartition(".")[0] if kind == "optimizer" else rest


def prepare_moments(
    names: Iterable[str], numbers: dict[str, Tensor], module: nn.Module, optimizers: Sequence[Optimizer]
) -> None:
    """Make room for moments of these names, so that they can be loaded in place; `numbers` are set at once."""
    named = dict(module.named_parameters())
    own = module.state_dict()
    for name in names:
        kind, _, rest = name.partition(".")
        if kind == "optimizer":
            number, _, rest = rest.partition(".")
            weight, _, moment = rest.rpartition(".")
            value = torch.zeros_like(named[weight])
            if name in numbers:
                value = numbers[name].clone() if moment == "step" else numbers[name].to(value)
            optimizers[int(number)].state[named[weight]][moment] = value
        elif kind == "weight" and name in numbers:
            own[rest].detach().copy_(numbers[name])


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
            place[moment] = tensor.clone() if moment == "step" else tensor.to(named[weight], copy=True)
    if average is not None:
        average.shadow = {
            name.removeprefix("average."): tensor.clone().to(named[name.removeprefix("average.")].device)
            for name, tensor in tensors.items()
            if name.startswith("average.")
        }
