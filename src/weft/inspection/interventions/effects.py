"""Effects: which head matters? Each head is switched off (or patched from another input) in turn.

A measure turns logits into one number, such as how much more likely one answer is than another: log p(a) - log p(b) is
the difference of their logits. The head whose absence changes it most is the one that makes *it* mean the animal.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from weft.inspection.interventions.interventions import Intervention, activations, logits_of, patched, replaced, zero
from weft.inspection.interventions.points import Head
from weft.inspection.recording.attention_records import Kind
from weft.inspection.recording.watch import watch

Measure = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Effects:
    """The measure before, and by how much it changes when each head is changed: `table` (L, H)."""

    kind: Kind
    layers: list[int]
    before: float
    table: Tensor

    def ranked(self) -> list[tuple[Head, float]]:
        """Heads by the size of their effect, largest first."""
        order = self.table.abs().flatten().argsort(descending=True).tolist()
        H = self.table.shape[1]
        return [(Head(self.layers[n // H], n % H, self.kind), float(self.table.flatten()[n])) for n in order]


def logit_difference(a: int, b: int, place: int = -1, batch: int = 0) -> Measure:
    """logit_a - logit_b at one place of logits [B, T, C], or of [B, C]."""

    def measure(logits: Tensor) -> Tensor:
        row = logits[batch] if logits.dim() == 2 else logits[batch, place]
        return row[a] - row[b]

    return measure


def head_effects(
    subject: Any, run: Callable[[], Any], measure: Measure, kind: Kind | None = None, change: Intervention = zero
) -> Effects:
    """Change each head in turn (by default switch it off) and measure again."""

    def with_head(head: Head) -> float:
        with replaced(subject, {head: change}):
            return float(measure(logits_of(run())))

    return _table(subject, run, measure, kind, with_head)


def patch_effects(
    subject: Any, run: Callable[[], Any], other: Callable[[], Any], measure: Measure, kind: Kind | None = None
) -> Effects:
    """Give each head in turn its output in `other`, a run on an input of the same length with the other answer."""

    def with_head(head: Head) -> float:
        with patched(subject, activations(subject, [head], other)):
            return float(measure(logits_of(run())))

    return _table(subject, run, measure, kind, with_head)


def _table(
    subject: Any, run: Callable[[], Any], measure: Measure, kind: Kind | None, with_head: Callable[[Head], float]
) -> Effects:
    with torch.no_grad():
        with watch(subject) as seen:
            before = float(measure(logits_of(run())))
        call = seen.call()
        kind = call.choose(kind)
        layers = call.layers(kind)
        table = [
            [with_head(Head(layer, head, kind)) - before for head in range(call.sizes(layer, kind)[1])]
            for layer in layers
        ]
    return Effects(kind, layers, before, torch.tensor(table, dtype=torch.float64))
