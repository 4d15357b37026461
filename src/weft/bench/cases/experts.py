"""Mixture of experts: is the time per token independent of the number of experts?

weft.parts.experts.Experts of width 256 with gated experts of hidden width 1024, A = 2 active, on 4,096 tokens, for
E = 4, 8, 16, 32, 64, against E = 4 and against a dense gated feed-forward of the same active compute (hidden width
A x 1024 = 2048). The router has its initial weights, so choices are about even.

Measured: time per token, forward (no_grad) and, for information, training (forward and backward to input and weights;
the backward writes gradients of all E experts, so it grows with E).

Target: forward at E = 64 at most 1.3 x that at E = 4. Speed is never a test: the exit code is 0 in any case.
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
from torch import Tensor, nn

from timing import Call, begin, interleave, limit, report, table
from weft.parts.experts import Experts
from weft.parts.feedforward import GatedFeedForward

WIDTH, HIDDEN, ACTIVE = 256, 1024, 2
REFERENCE = 4


def as_call(module: nn.Module, task: str, x: Tensor) -> Call:
    """One forward, or one forward and backward, as a call without arguments."""
    if task == "forward":

        def forward() -> Tensor:
            with torch.no_grad():
                return module(x)

        return forward

    x = x.detach().requires_grad_()
    gradient = torch.ones_like(x)

    def training() -> None:
        module.zero_grad(set_to_none=True)
        x.grad = None
        module(x).backward(gradient)

    return training


def measure(experts: list[int], tokens: int, seconds: float) -> list[dict[str, Any]]:
    """One entry per contestant and task."""
    torch.manual_seed(0)
    x = torch.randn(1, tokens, WIDTH)
    modules: dict[str, nn.Module] = {f"experts {E}": Experts(WIDTH, HIDDEN, E, ACTIVE) for E in experts}
    modules["dense"] = GatedFeedForward(WIDTH, ACTIVE * HIDDEN)
    first = f"experts {REFERENCE if REFERENCE in experts else experts[0]}"
    results = []
    for task in ("forward", "training"):
        rounds = interleave({name: as_call(module, task, x) for name, module in modules.items()}, seconds, most=40)
        results += [
            {
                "contestant": name,
                "task": task,
                "tokens": tokens,
                "value": rounds.best(name) / tokens * 1e6,
                "unit": "us/token",
                "median": rounds.median(name) / tokens * 1e6,
                "ratio": rounds.ratio(name, first),
                "paired": rounds.paired(name, first),
                "to_dense": rounds.ratio(name, "dense"),
                "rounds": len(rounds),
            }
            for name in modules
        ]
    return results


def limits(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The targets, with what was reached."""
    return [
        limit(f"{r['contestant']}, forward: time per token / that of {REFERENCE} experts", r["ratio"], 1.3, r["rounds"])
        for r in results
        if r["task"] == "forward" and r["contestant"].startswith("experts")
    ]


def as_text(results: list[dict[str, Any]]) -> str:
    """The table."""
    numbers = ("ratio", "paired", "to_dense")
    rows = [
        [r["contestant"], r["task"], f"{r['value']:.2f}", f"{r['median']:.2f}", *(f"{r[n]:.3f}" for n in numbers)]
        for r in results
    ]
    headings = ["contestant", "task", "best us/token", "median", f"/ {REFERENCE} experts", "paired", "/ dense"]
    return table(headings, rows)


def main() -> None:
    """Parse, measure, report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--experts", type=int, nargs="+", default=[4, 8, 16, 32, 64], help="numbers of experts E")
    parser.add_argument("--tokens", type=int, default=4096, help="tokens in one call")
    parser.add_argument("--seconds", type=float, default=40.0, help="time for the rounds per task")
    parser.add_argument("--threads", type=int, help="threads of torch (default: all)")
    parser.add_argument("--json", action="store_true", help="print one JSON value instead of tables")
    options = parser.parse_args()
    begin(options.threads)
    results = measure(options.experts, options.tokens, options.seconds)
    report(results, limits(results), as_text(results), options.json)


if __name__ == "__main__":
    main()
