"""Interventions: switch a part off or replace its output, and see what changes; all is as before on leaving.

    with switched_off(run, Head(2, 1), FeedForward(0)): run.predict(...)
    with replaced(run, {Head(2, 1): mean_over_tokens}): ...
    with patched(run, kept): ...              # kept = activations(run, [Head(2, 1)], lambda: module(other))

Points: a head's output Y_h, a whole attention, a feed-forward, tokens' embeddings, positions. Interventions on Weft's
own parts act in every thread. Heads of other libraries can be changed where they run torch's fused kernel, and only in
the thread that intervenes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from weft.foundation.errors import WeftError
from weft.inference.fast.optimized import parts_only
from weft.inspection.interventions.points import (
    Attention,
    FeedForward,
    Head,
    Intervention,
    InterventionPoint,
    Positions,
    Tokens,
    intervene,
)
from weft.inspection.recording.calling import module_of
from weft.inspection.recording.function_overrides import FunctionOverrides
from weft.parts.observer import observing


def zero(values: Tensor) -> Tensor:
    """0 in place of the values."""
    return torch.zeros_like(values)


def mean_over_tokens(values: Tensor) -> Tensor:
    """The mean over all rows and tokens, the same for each."""
    axes = tuple(range(values.dim() - 1))
    return values.mean(axes, keepdim=True).expand_as(values)


def mean_of(values: Tensor) -> Intervention:
    """The mean of activations recorded on other inputs, the same for each token."""
    mean = values.reshape(-1, values.shape[-1]).mean(0)
    return lambda own: mean.to(own).expand_as(own)


@contextmanager
def replaced(subject: Any, changes: Mapping[InterventionPoint, Intervention]) -> Iterator[None]:
    """Each point's values [B, T, .] become `change(values)`."""
    module = module_of(subject)
    with parts_only(module), FunctionOverrides() as overrides:
        observers = [intervene(module, point, overrides, change) for point, change in changes.items()]
        with observing(*(one for one in observers if one is not None)):
            yield


@contextmanager
def switched_off(subject: Any, *points: InterventionPoint) -> Iterator[None]:
    """The output of these points is 0 (positions: as if there were none)."""
    with replaced(subject, dict.fromkeys(points, zero)):
        yield


def activations(
    subject: Any, points: Sequence[InterventionPoint], run: Callable[[], Any]
) -> dict[InterventionPoint, Tensor]:
    """The values of these points in one run, [B, T, .] each."""
    kept: dict[InterventionPoint, Tensor] = {}

    def keep(point: InterventionPoint) -> Intervention:
        def change(values: Tensor) -> Tensor:
            kept[point] = values.detach().clone()
            return values

        return change

    with replaced(subject, {point: keep(point) for point in points}), torch.no_grad():
        run()
    missing = next((point for point in points if point not in kept), None)
    if missing is not None:
        raise WeftError(f"{missing} did not run: check its layer and kind")
    return kept


@contextmanager
def patched(
    subject: Any, kept: Mapping[InterventionPoint, Tensor], places: Sequence[int] | None = None
) -> Iterator[None]:
    """These points have the values that they had in another run; with `places`, only at these tokens."""

    def put(point: InterventionPoint, other: Tensor) -> Intervention:
        def change(values: Tensor) -> Tensor:
            if values.shape != other.shape:
                raise WeftError(
                    f"{point} is {tuple(values.shape)} here but {tuple(other.shape)} in the run that it is patched "
                    "from: use inputs of the same length"
                )
            if places is None:
                return other.to(values)
            out = values.clone()
            out[:, list(places)] = other.to(values)[:, list(places)]
            return out

        return change

    with replaced(subject, {point: put(point, other) for point, other in kept.items()}):
        yield


@dataclass(frozen=True)
class Changed:
    """Logits before and after an intervention [..., C], and how far they are apart."""

    before: Tensor
    after: Tensor

    @property
    def largest(self) -> float:
        """The largest difference of any logit."""
        return float((self.after - self.before).abs().max())

    @property
    def divergence(self) -> Tensor:
        """[...]: KL(before || after) in nats, per token."""
        p, q = self.before.double().log_softmax(-1), self.after.double().log_softmax(-1)
        return (p.exp() * (p - q)).sum(-1)

    @property
    def turned(self) -> Tensor:
        """[...]: True where the likeliest answer is another one."""
        return self.before.argmax(-1) != self.after.argmax(-1)


def effect(
    subject: Any,
    run: Callable[[], Any],
    changes: Mapping[InterventionPoint, Intervention] | Sequence[InterventionPoint],
) -> Changed:
    """What an intervention changes in the logits of `run`; points given as a list are switched off."""
    given = changes if isinstance(changes, Mapping) else dict.fromkeys(changes, zero)
    with torch.no_grad():
        before = logits_of(run())
        with replaced(subject, given):
            after = logits_of(run())
    return Changed(before, after)


def logits_of(out: Any) -> Tensor:
    """The logits of an output of any library, or the tensor itself."""
    if isinstance(out, Tensor):
        return out.detach()
    found = getattr(out, "logits", None)
    if found is None:
        found = out[0] if isinstance(out, (tuple, list)) and out else getattr(out, "last_hidden_state", None)
    if not isinstance(found, Tensor):
        raise WeftError(f"a {type(out).__name__} has no logits: let `run` return a tensor")
    return found.detach()


__all__ = [
    "Attention",
    "Changed",
    "FeedForward",
    "Head",
    "Intervention",
    "InterventionPoint",
    "Positions",
    "Tokens",
    "activations",
    "effect",
    "logits_of",
    "mean_of",
    "mean_over_tokens",
    "patched",
    "replaced",
    "switched_off",
    "zero",
]
