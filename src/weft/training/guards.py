"""Guards of a training: no look ahead, no NaN; each stops the run with the last good state kept."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from weft.foundation.errors import WeftError
from weft.laws.checker import check
from weft.models.output import Output

GUARDED_LAWS = ("causality", "reach", "prefix", "batch independence")


class TrainingError(WeftError):
    """A training that cannot go on; the last good state is kept."""


def expect_lawful(module: nn.Module, step: int) -> None:
    """The leak guard: what each output depends on, against what the model declares."""
    broken = check(module, laws=GUARDED_LAWS).broken
    if broken:
        first = broken[0]
        raise TrainingError(
            f"step {step}: the model breaks the law of {first.law} ({first.evidence}), so its loss cannot be trusted; "
            "the last good state is kept: see `weft laws` on the run, or train on with --set training.guard=false"
        )


def expect_finite(module: nn.Module, norm: Tensor, step: int, again: Any) -> None:
    """Stop at the first gradient that is no number; `again` repeats the forward call to find where it began."""
    if bool(torch.isfinite(norm)):
        return
    where = first_nonfinite(module, again)
    raise TrainingError(
        f"step {step}: the gradient is no longer a finite number; {where}; the last good state is kept: "
        "try a lower rate (--set training.rate=... training.matrix_rate=...) or check the data"
    )


def first_nonfinite(module: nn.Module, again: Any) -> str:
    """The first weight or module that gives NaN or infinity, in the order of computing."""
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
            loss = again()
    finally:
        for handle in handles:
            handle.remove()
    if found:
        return f"the first module that gives such values is {found[0]}"
    if not bool(torch.isfinite(loss)):
        return "all modules give finite values, the loss itself does not"
    names = [name for name, w in module.named_parameters() if w.grad is not None and not bool(w.grad.isfinite().all())]
    return f"values are finite, the gradient of {names[-1]} is not" if names else "it happened in the gradient alone"
