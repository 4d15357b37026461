"""Guards of a training against looking ahead and against NaN: each stops the run, and the last good state is kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from weft.foreign.user_module import UserModule
from weft.foundation.errors import WeftError
from weft.laws.checker import check
from weft.models.output import Output
from weft.training.parallel.local_tensors import is_distributed

GUARDED_LAWS = ("causality", "reach", "prefix", "masks", "batch independence")


class TrainingError(WeftError):
    """A training that cannot continue; the last good state is kept."""


def expect_lawful(module: nn.Module, step: int) -> None:
    """Stop if an output depends on inputs that the model declares it does not see."""
    broken = check(module, laws=_guarded_laws(module)).broken
    if broken:
        first = broken[0]
        raise TrainingError(
            f"step {step}: the model breaks the law of {first.law} ({first.evidence}), so its loss cannot be trusted; "
            "the last good state is kept: run `weft laws` on the run, or turn the guard off: --set training.guard=false"
        )


def _guarded_laws(module: nn.Module) -> tuple[str, ...]:
    """Without batch independence for a user's classifier with batch norms: on purpose, and no answer leaks by them."""
    normed = any(isinstance(part, _BatchNorm) for part in module.modules())
    if not (isinstance(module, UserModule) and normed) or module.declares().causal:
        return GUARDED_LAWS
    return tuple(law for law in GUARDED_LAWS if law != "batch independence")


def expect_finite(module: nn.Module, norm: Tensor, step: int, forward: Callable[[], Tensor]) -> None:
    """Stop at a gradient norm that is NaN or infinite; `forward` repeats the loss to find the first such value."""
    if bool(torch.isfinite(norm)):
        return
    where = first_nonfinite(module, forward)
    raise TrainingError(
        f"step {step}: the gradient is not finite; {where}; the last good state is kept: "
        "try a lower learning rate (--set training.rate=... training.matrix_rate=...) or check the data"
    )


def first_nonfinite(module: nn.Module, forward: Callable[[], Tensor]) -> str:
    """Where NaN or infinity first appears: in a weight, in a module's output, in the loss or in a gradient."""
    if any(map(is_distributed, module.parameters())):
        return "which part it comes from is told where one process holds the whole model"
    for name, weight in module.named_parameters():
        if not bool(torch.isfinite(weight).all()):
            return f"the first weight that is not finite is {name}"
    found: list[str] = []
    handles = []

    def watch(name: str) -> Any:
        def hook(_: nn.Module, __: Any, output: Any) -> None:
            values = output.hidden if isinstance(output, Output) else output
            values = values[0] if isinstance(values, tuple) and values else values
            if isinstance(values, Tensor) and values.is_floating_point() and not bool(torch.isfinite(values).all()):
                found.append(name)

        return hook

    for name, part in module.named_modules():
        handles.append(part.register_forward_hook(watch(name or "the model's output")))
    try:
        with torch.no_grad():
            loss = forward()
    finally:
        for handle in handles:
            handle.remove()
    if found:
        return f"the first module whose output is not finite is {found[0]}"
    if not bool(torch.isfinite(loss)):
        return "all outputs are finite, the loss is not"
    names = [name for name, w in module.named_parameters() if w.grad is not None and not bool(w.grad.isfinite().all())]
    return f"outputs and loss are finite, the gradient of {names[-1]} is not" if names else "only the gradient is not"
