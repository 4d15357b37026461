"""Learning: as `fitting`, with the optimizers and the schedule of `weft train`, and a held-out measure by step."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from weft.training.optimizers import build_optimizers
from weft.training.schedules import Trapezoid

Curve = list[tuple[float, float]]
WARMUP, DECAY = 0.05, 0.5  # shares of the steps


def learn(
    model: nn.Module,
    loss: Callable[[int], Tensor],
    steps: int,
    measure: Callable[[], float] | None = None,
    optimizer: str = "muon",
    rate: float = 3e-3,
    points: int = 20,
) -> Curve:
    """Minimize `loss(step)`, that of a new batch at every step; (step, `measure()`) at about so many steps, 0 included.

    The optimizers and their schedule are those of `weft train`: warm-up, then a plateau, then down to 0. `measure` is
    taken in evaluation mode and without gradients; without one, it is the loss of the batch itself.
    """
    optimizers = build_optimizers(model, optimizer, lr=rate)
    groups = [group for one in optimizers for group in one.param_groups]
    rates = [group["lr"] for group in groups]
    schedule = Trapezoid(steps, max(1, round(WARMUP * steps)), DECAY)
    every, curve = max(1, steps // points), Curve()
    for step in range(steps):
        if measure is not None and step % every == 0:
            curve.append((step, measured(model, measure)))
        for group, full in zip(groups, rates, strict=True):
            group["lr"] = full * schedule.share(step)
        model.train()
        model.zero_grad(set_to_none=True)
        value = loss(step)
        value.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for one in optimizers:
            one.step()
        if measure is None and step % every == 0:
            curve.append((step, float(value.detach())))
    model.eval()
    return curve if measure is None else [*curve, (steps, measured(model, measure))]


def measured(model: nn.Module, measure: Callable[[], float]) -> float:
    """What is measured of a model in evaluation mode, without gradients."""
    model.eval()
    with torch.no_grad():
        return measure()
