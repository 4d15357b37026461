"""`weft bench watching`: what does it cost to watch?

A decoder (nano-gpt of 2 layers) on N = 16,384 tokens, forward without gradients, plain and inside `weft.watch`; the
same model generating 256 tokens; and, of the recorded attention, one row of one head. A map of N x N numbers would be
1 GB per head: nothing of that size is made.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import weft
from weft.bench.contest import BenchOptions, Contest, Entry, Work
from weft.bench.results import CaseResult
from weft.bench.running.turns import hold_contests
from weft.inference.decoding.generate import generate
from weft.inference.decoding.request import GenerationRequest

LENGTH, GENERATED = 16_384, 256
GROUPS = {
    "a forward": ("forward", "forward, watched", "one row of one head"),
    "generating": ("generating", "generating, watched"),
}


def contests(options: BenchOptions) -> list[Contest]:
    """Forward and generation, each watched and not."""
    length, generated = (64, 5) if options.quick else (LENGTH, GENERATED)
    place = "weft.bench.cases.watching:watching_work"
    return [
        Contest(
            name,
            tuple(Entry(way, place, {"way": way, "length": length, "generated": generated}) for way in ways),
            "tokens",
            length if name == "a forward" else generated,
            reference=ways[0],
            limits=False,
        )
        for name, ways in list(GROUPS.items())[: 1 if options.quick else None]
    ]


def run(options: BenchOptions, report: Callable[[str], None]) -> CaseResult:
    """Measure the case."""
    return hold_contests("watching", contests(options), (), options, report)


def watching_work(way: str, length: int, generated: int) -> Work:
    """One of the ways named above."""
    model: Any = weft.build(weft.preset("nano-gpt").replace(layers=2, length=max(length, 2 * generated)), seed=0).eval()
    tokens = torch.randint(0, 256, (1, length), generator=torch.Generator().manual_seed(0))

    def forward() -> Any:
        with torch.no_grad():
            return model(tokens)

    def watched() -> Any:
        with weft.watch(model) as seen:
            forward()
        return seen

    def write() -> Any:
        return generate(model, GenerationRequest([[1, 2, 3]], max_tokens=generated))

    def write_watched() -> Any:
        with weft.watch(model):
            return write()

    if way == "one row of one head":
        kept = watched()
        return Work(lambda: kept.attention(1, 0, rows=[length - 1]))
    calls = {"forward": forward, "forward, watched": watched, "generating": write, "generating, watched": write_watched}
    return Work(calls[way])
