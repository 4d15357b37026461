"""Activation traces: every tensor that goes into or comes out of a submodule in one run, in order."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn

from weft.foreign.exact import Exact
from weft.foundation.errors import WeftError
from weft.inference.decoding.conditioning import eval_mode
from weft.inspection.analysis.lens import stacks_of
from weft.inspection.interventions.interventions import logits_of
from weft.inspection.recording.watch import Seen, watch
from weft.laws.trace import tensors_in

When = Literal["in", "out"]


@dataclass(eq=False)
class ActivationEvent:
    """One tensor going into or coming out of a part; `visit` counts the runs of that part."""

    path: str
    part: nn.Module
    when: When
    visit: int
    tensor: Tensor
    others: list[Tensor] = field(default_factory=list)

    @property
    def name(self) -> str:
        return f"{'into' if self.when == 'in' else 'out of'} {self.path or 'the model'}"


@dataclass(eq=False)
class ActivationTrace:
    """One run of a model: events in order, attention records, the answer; `exact` if it ran in float64."""

    module: nn.Module
    events: list[ActivationEvent]
    seen: Seen
    answer: Tensor
    exact: bool

    def inside(self, path: str) -> list[ActivationEvent]:
        """The events of one part and of all parts in it."""
        return [one for one in self.events if one.path == path or one.path.startswith(f"{path}.") or not path]

    def blocks(self) -> list[str]:
        """The paths of the blocks of its stacks, in order."""
        try:
            found = stacks_of(self.module)
        except WeftError:
            return []
        paths = {id(part): path for path, part in self.module.named_modules()}
        return [paths[id(block)] for _, blocks, _ in found for block in blocks]


def trace_activations(module: nn.Module, run: Callable[[nn.Module], Any]) -> ActivationTrace:
    """Run a float64 copy of the module (the module itself where it cannot be copied) in evaluation mode."""
    try:
        twin, exact = copy.deepcopy(module).cpu().double().eval(), True
    except Exception:
        twin, exact = module, False
    events: list[ActivationEvent] = []
    visits: Counter[str] = Counter()

    def enter(path: str) -> Any:
        def hook(part: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            visits[path] += 1
            _add(events, path, part, "in", visits[path], (args, kwargs))

        return hook

    def leave(path: str) -> Any:
        def hook(part: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
            _add(events, path, part, "out", visits[path], out)

        return hook

    hooks = []
    for path, part in twin.named_modules():
        hooks.append(part.register_forward_pre_hook(enter(path), with_kwargs=True))
        hooks.append(part.register_forward_hook(leave(path), with_kwargs=True))
    try:
        with eval_mode(twin), torch.no_grad(), watch(twin) as seen, Exact() if exact else nullcontext():
            answer = logits_of(run(twin))
    finally:
        for hook in hooks:
            hook.remove()
    return ActivationTrace(twin, events, seen, answer, exact)


def _add(events: list[ActivationEvent], path: str, part: nn.Module, when: When, visit: int, value: Any) -> None:
    found = [tensor.detach().clone() for tensor in tensors_in(value)]
    if found:
        events.append(ActivationEvent(path, part, when, visit, found[0], found[1:]))


def apart(x: Tensor, y: Tensor) -> float:
    """The largest difference, relative to the size of the numbers; inf where shapes differ or one is not finite."""
    if x.shape != y.shape:
        return float("inf")
    if not x.numel():
        return 0.0
    x, y = x.double(), y.double()
    if bool((x.isfinite() != y.isfinite()).any()):
        return float("inf")
    x, y = x.nan_to_num(0, 0, 0), y.nan_to_num(0, 0, 0)
    return float((x - y).abs().max() / x.abs().max().clamp(min=1e-12))
