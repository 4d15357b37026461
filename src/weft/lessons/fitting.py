"""Fitting: the few lines that train the small models of the lessons; `weft.train` is what trains real ones."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from weft.lessons.claims import LessonError

WARM_UP = 0.1  # share of the steps in which the rate rises
POINTS = 100  # of the curve that is kept


def fit(
    module: nn.Module, loss_of: Callable[[int], Tensor], steps: int, rate: float = 3e-3, clip: float = 1.0
) -> list[tuple[float, float]]:
    """Train in place: AdamW, rate rising then falling in a line, gradients clipped. The curve of (step, loss).

    `loss_of(step)` draws a batch and returns its loss; a loss that is not finite ends the curve.
    """
    if steps < 1:
        raise LessonError(f"{steps} steps train nothing: give at least 1")
    optimizer = torch.optim.AdamW(module.parameters(), rate, weight_decay=0.0)
    rising = max(1, int(WARM_UP * steps))
    curve: list[tuple[float, float]] = []
    module.train()
    for step in range(steps):
        share = min((step + 1) / rising, (steps - step) / max(1, steps - rising))
        for group in optimizer.param_groups:
            group["lr"] = rate * share
        loss = loss_of(step)
        if step % max(1, steps // POINTS) == 0 or step == steps - 1:
            curve.append((float(step), float(loss.detach())))
        if not bool(torch.isfinite(loss)):
            break
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(module.parameters(), clip)
        optimizer.step()
    module.eval()
    return curve
