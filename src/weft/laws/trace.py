"""Traces: what went in and out of every submodule in one run, to find where two runs first part."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

Differs = Callable[[Tensor, Tensor], bool]


@dataclass
class TraceStep:
    """One call of one submodule: its dotted path, the tensors that went in and came out."""

    path: str
    inputs: list[Tensor]
    outputs: list[Tensor]


def tensors_in(value: Any, depth: int = 0) -> Iterator[Tensor]:
    """The floating-point tensors inside tuples, lists, dicts and dataclasses."""
    if isinstance(value, Tensor):
        if value.is_floating_point():
            yield value
    elif depth < 3:
        if isinstance(value, dict):
            inner: Any = value.values()
        elif isinstance(value, (tuple, list)):
            inner = value
        elif dataclasses.is_dataclass(value) and not isinstance(value, type):
            inner = [getattr(value, f.name, None) for f in dataclasses.fields(value)]
        else:
            return
        for item in inner:
            yield from tensors_in(item, depth + 1)


def trace(module: nn.Module, run: Callable[[], Any]) -> list[TraceStep]:
    """Steps in the order in which submodules finish: a part before the whole that it belongs to."""
    steps: list[TraceStep] = []
    entered: dict[int, list[list[Tensor]]] = {}

    def enter(part: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        kept = [t.detach().clone() for t in tensors_in((args, kwargs))]
        entered.setdefault(id(part), []).append(kept)

    def leave(path: str) -> Callable[..., None]:
        def hook(part: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
            del args, kwargs
            steps.append(TraceStep(path, entered[id(part)].pop(), [t.detach().clone() for t in tensors_in(out)]))

        return hook

    hooks = []
    for path, part in module.named_modules():
        hooks.append(part.register_forward_pre_hook(enter, with_kwargs=True))
        hooks.append(part.register_forward_hook(leave(path), with_kwargs=True))
    try:
        with torch.no_grad():
            run()
    finally:
        for hook in hooks:
            hook.remove()
    return steps


def first_divergence(a: list[TraceStep], b: list[TraceStep], differs: Differs) -> str | None:
    """The path of the first submodule whose inputs agree in both runs and whose outputs do not.

    Innermost, because parts finish before the whole. "" is the module itself: its parts are all innocent.
    """
    counts: dict[str, int] = {}
    seen: dict[tuple[str, int], TraceStep] = {}
    for step in b:
        number = counts[step.path] = counts.get(step.path, -1) + 1
        seen[step.path, number] = step
    counts.clear()
    for step in a:
        number = counts[step.path] = counts.get(step.path, -1) + 1
        other = seen.get((step.path, number))
        if other is None:
            continue
        if not _any_differ(step.inputs, other.inputs, differs) and _any_differ(step.outputs, other.outputs, differs):
            return step.path
    return None


def first_blind(a: list[TraceStep], b: list[TraceStep], differs: Differs) -> str | None:
    """The path of the first submodule whose inputs differ and whose outputs do not: where something is lost."""
    for step, other in zip(a, b, strict=False):
        if step.path == other.path and _any_differ(step.inputs, other.inputs, differs):
            outputs_differ = _any_differ(step.outputs, other.outputs, differs)
            if step.outputs and not outputs_differ:
                return step.path
    return None


def first_overreach(
    a: list[TraceStep], b: list[TraceStep], T: int, position: int, window: int, tolerance: float
) -> str | None:
    """The first submodule through which a change at `position` travels farther than one window."""
    for step, other in zip(a, b, strict=False):
        before = max((_farthest(x, y, T, position, tolerance) for x, y in _pairs(step.inputs, other.inputs)), default=0)
        after = max(
            (_farthest(x, y, T, position, tolerance) for x, y in _pairs(step.outputs, other.outputs)), default=0
        )
        if after - before > window - 1:
            return step.path
    return None


def _pairs(a: list[Tensor], b: list[Tensor]) -> list[tuple[Tensor, Tensor]]:
    return [(x, y) for x, y in zip(a, b, strict=False) if x.shape == y.shape]


def _farthest(x: Tensor, y: Tensor, T: int, position: int, tolerance: float) -> int:
    axis = _time_axis(x, T)
    if axis is None:
        return 0
    apart = ((x - y).abs() > tolerance).movedim(axis, 0).flatten(1).any(1)
    return max((abs(int(t) - position) for t in apart.nonzero().flatten()), default=0)


def diverged_in_order(T: int, order: Tensor, tolerance: float) -> Differs:
    """For a run and one with its tokens in another order: do tensors differ once that is undone?"""

    def differs(x: Tensor, y: Tensor) -> bool:
        if x.shape != y.shape:
            return False
        for axis in range(x.dim()):
            if x.shape[axis] == T:
                x = x.index_select(axis, order)
        return _apart(x, y, tolerance)

    return differs


def diverged_at_all(tolerance: float) -> Differs:
    """Do two tensors of one shape differ anywhere?"""
    return lambda x, y: x.shape == y.shape and _apart(x, y, tolerance)


def _any_differ(a: list[Tensor], b: list[Tensor], differs: Differs) -> bool:
    return any(differs(x, y) for x, y in zip(a, b, strict=False))


def diverged_before(T: int, position: int, tolerance: float) -> Differs:
    """For runs of T tokens that differ from `position` on: do tensors differ at an earlier place on their time axis?"""

    def differs(x: Tensor, y: Tensor) -> bool:
        if x.shape != y.shape:
            return False
        axis = _time_axis(x, T)
        return axis is not None and _apart(x.narrow(axis, 0, position), y.narrow(axis, 0, position), tolerance)

    return differs


def diverged_outside(T: int, seen: Tensor, tolerance: float) -> Differs:
    """For runs that differ in one token: do tensors differ at places from which it is not to be seen (`seen` [T])?"""
    hidden = (~seen).nonzero().flatten()

    def differs(x: Tensor, y: Tensor) -> bool:
        if x.shape != y.shape:
            return False
        axis = _time_axis(x, T)
        if axis is None:
            return False
        return _apart(x.index_select(axis, hidden), y.index_select(axis, hidden), tolerance)

    return differs


def diverged_in_row(rows: int, tolerance: float) -> Differs:
    """For batches that differ in other rows: do tensors differ in row 0?"""

    def differs(x: Tensor, y: Tensor) -> bool:
        if x.shape != y.shape or not x.dim():
            return False
        if x.shape[0] % rows == 0:
            share = x.shape[0] // rows
            return _apart(x[:share], y[:share], tolerance)
        return x.dim() > 1 and x.shape[1] == rows and _apart(x[:, 0], y[:, 0], tolerance)

    return differs


def diverged_in_slice(short: int, long: int, first: int, tolerance: float) -> Differs:
    """For a run of `short` tokens and one of `long` that holds them from `first` on: do the shared places differ?"""

    def differs(x: Tensor, y: Tensor) -> bool:
        if x.dim() != y.dim():
            return False
        for axis in range(x.dim()):
            if x.shape[axis] == short and y.shape[axis] == long:
                y = y.narrow(axis, first, short)
        return x.shape == y.shape and _apart(x, y, tolerance)

    return differs


def _time_axis(x: Tensor, T: int) -> int | None:
    return next((axis for axis, size in enumerate(x.shape) if size == T), None)


def _apart(x: Tensor, y: Tensor, tolerance: float) -> bool:
    if not x.numel():
        return False
    difference = (x.double() - y.double()).abs()
    return bool((difference > tolerance).any()) or bool((x.isfinite() != y.isfinite()).any())
