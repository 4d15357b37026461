"""Learning by heart: the gap between held-out and training loss grows while the held-out loss no longer falls.

Both are measured the same way: the evaluated weights, without dropout, on evenly spread batches. What is done about it
is on record in plan.json as a revision: first dropout and weight decay are raised by one notch, then the rate comes
down now.
"""

from __future__ import annotations

from torch import nn
from torch.optim import Optimizer

from weft.parts.block import Block

HEART_EPOCHS = 2.0  # that are read before anything is learned by heart
STALE = 2  # evaluations in a row without a better held-out loss
GROWTH = 0.02  # of the best held-out loss: by so much the gap grew since then
NOTCH = 0.1  # of dropout
MOST_DROPOUT = 0.6
DECAY_NOTCH = 2.0  # times the weight decay
LANDING = 0.5  # of the steps taken so far, over which the rate comes down
WORTHWHILE = 0.9  # of the planned steps: an end that is hardly earlier is no gain


class GapWatch:
    """Held-out and training losses of a training's evaluations, since the last time that something was done."""

    def __init__(self) -> None:
        self.looks: list[tuple[float, float]] = []

    def add(self, validation: float, training: float) -> None:
        """The losses at an evaluation."""
        self.looks.append((validation, training))

    @property
    def grows(self) -> bool:
        """Whether the model learns by heart: STALE evaluations without a better held-out loss, while the training loss
        fell and the gap between both grew."""
        if len(self.looks) <= STALE:
            return False
        best = min(range(len(self.looks)), key=lambda place: self.looks[place][0])
        (v0, t0), (v, t) = self.looks[best], self.looks[-1]
        stale = len(self.looks) - 1 - best
        return stale >= STALE and t < t0 and (v - t) - (v0 - t0) > GROWTH * abs(v0)


class Regularization:
    """Dropout of a model's parts and weight decay of its optimizers, raised by notches.

    Parts that drop nothing stay so, because other kernels are fast without: where nothing drops, branches of blocks
    begin to.
    """

    def __init__(self, module: nn.Module, optimizers: list[Optimizer]) -> None:
        found = [(part, "p" if isinstance(part, nn.Dropout) else "dropout") for part in module.modules()]
        numbers = [(part, name, part.__dict__.get(name)) for part, name in found]
        own = [(part, name, float(p)) for part, name, p in numbers if isinstance(p, float | int)]
        dropping = [one for one in own if one[2] > 0]
        self._parts = dropping or [one for one in own if isinstance(one[0], Block)]
        groups = [group for optimizer in optimizers for group in optimizer.param_groups]
        self._groups = [(group, group["weight_decay"]) for group in groups if "weight_decay" in group]
        self.notches = 0

    def set(self, notches: int) -> None:
        """Of the steps from now on."""
        if notches == self.notches:
            return
        self.notches = notches
        for part, name, p in self._parts:
            setattr(part, name, min(max(p, MOST_DROPOUT), p + NOTCH * notches))
        for group, decay in self._groups:
            group["weight_decay"] = decay * DECAY_NOTCH**notches
