"""`weft bench experts`: is the time per token independent of the number of experts?

weft.parts.experts.Experts of width 256 with gated experts of hidden width 1024, A = 2 active, on 4,096 tokens, for E
from 4 to 64, against E = 4 and a dense gated feed-forward of the same active compute (hidden width A x 1024). The
router has its initial weights, so choices are about even. Training writes gradients of all experts, so it grows with E.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from weft.bench.contest import BenchOptions, Contest, Cost, Entry, Work
from weft.bench.results import CaseResult
from weft.bench.running.turns import hold_contests
from weft.parts.experts import Experts
from weft.parts.feedforward import GatedFeedForward

WIDTH, HIDDEN, ACTIVE, TOKENS = 256, 1024, 2, 4096
NUMBERS = (4, 8, 16, 32, 64)
REFERENCE = "4 experts"
NOTES = ("to reach: 64 experts at least 1 / 1.3 = 0.77 x as fast as 4, forward, two threads",)


def contests(options: BenchOptions) -> list[Contest]:
    """Forward and training."""
    numbers, tokens, hidden = ((4, 7), 29, 16) if options.quick else (NUMBERS, TOKENS, HIDDEN)
    # Gate, up and down: three matrices of each active expert.
    flops = 2.0 * 3 * WIDTH * ACTIVE * hidden * tokens
    shapes = ((tokens, hidden * ACTIVE, WIDTH), (tokens, WIDTH, hidden * ACTIVE))
    found = []
    for task in ("training",) if options.quick else ("forward", "training"):
        arguments = {"task": task, "tokens": tokens, "hidden": hidden}
        entries = [
            Entry(f"{E} experts", "weft.bench.cases.experts:experts_work", arguments | {"experts": E}) for E in numbers
        ]
        entries.append(Entry("dense", "weft.bench.cases.experts:experts_work", arguments | {"experts": 0}))
        cost = Cost(flops=flops * (1 if task == "forward" else 3))
        found.append(
            Contest(
                task, tuple(entries), "tokens", tokens, cost=cost, shapes=shapes, reference=REFERENCE,
                limits=not options.quick, notes=NOTES if task == "forward" else (),
            )
        )  # fmt: skip
    return found


def run(options: BenchOptions, report: Callable[[str], None]) -> CaseResult:
    """Measure the case."""
    return hold_contests("experts", contests(options), (), options, report)


def experts_work(task: str, tokens: int, hidden: int, experts: int) -> Work:
    """One forward, or one forward and backward; without experts, the dense feed-forward."""
    torch.manual_seed(0)
    dense = GatedFeedForward(WIDTH, ACTIVE * hidden)
    module: nn.Module = Experts(WIDTH, hidden, experts, ACTIVE) if experts else dense
    x = torch.randn(1, tokens, WIDTH)

    def forward() -> Tensor:
        with torch.no_grad():
            return module(x)

    if task == "forward":
        return Work(forward)
    x.requires_grad_()
    gradient = torch.ones_like(x)

    def training() -> None:
        module.zero_grad(set_to_none=True)
        x.grad = None
        module(x).backward(gradient)

    return Work(training)
