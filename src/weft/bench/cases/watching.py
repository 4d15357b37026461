"""Watching: what does it cost?

A decoder (nano-gpt of 2 layers) on N = 16,384 tokens, forward without gradients: plain, and inside `weft.watch`; the
same model generating 256 tokens. Then, of the recorded attention: one row of one head, and the statistics of all heads,
with their time as a multiple of one forward.

Memory: the peak that the forward adds when watched and when not; a map of N x N numbers would be 1,024 MiB per head.

Target: watching takes at most 1.3 x the time. Speed is never a test: the exit code is 0 in any case.
"""

from __future__ import annotations

import argparse
from typing import Any

import torch

import weft
from timing import Call, begin, extra_memory, interleave, limit, report, table
from weft.inference.decoding.generate import generate
from weft.inference.decoding.request import GenerationRequest

GENERATED = 256


def contestants(length: int) -> tuple[dict[str, Call], dict[str, Call]]:
    """Two groups of calls, each compared with its first: forwards, generations."""
    model = weft.build(weft.preset("nano-gpt").replace(layers=2, length=max(length, 2 * GENERATED))).eval()
    tokens = torch.randint(0, 256, (1, length), generator=torch.Generator().manual_seed(0))

    def forward() -> None:
        with torch.no_grad():
            model(tokens)

    def watched() -> Any:
        with weft.watch(model) as seen:
            forward()
        return seen

    def write() -> None:
        generate(model, GenerationRequest([[1, 2, 3]], max_tokens=GENERATED))

    def write_watched() -> None:
        with weft.watch(model):
            write()

    kept = watched()
    forwards: dict[str, Call] = {
        "forward": forward,
        "forward, watched": watched,
        "one row of one head": lambda: kept.attention(1, 0, rows=[length - 1]),
    }
    return forwards, {f"generating {GENERATED} tokens": write, f"generating {GENERATED} tokens, watched": write_watched}


def measure(length: int, seconds: float, statistics: bool) -> list[dict[str, Any]]:
    """One entry per contestant."""
    results = []
    for calls in contestants(length):
        first = next(iter(calls))
        rounds = interleave(calls, seconds, most=15)
        for name, call in calls.items():
            results.append(
                {
                    "contestant": name,
                    "value": rounds.best(name),
                    "unit": "s",
                    "ratio": rounds.ratio(name, first),
                    "paired": rounds.paired(name, first),
                    "memory": extra_memory(call) / 2**20,
                    "rounds": len(rounds),
                }
            )
    if statistics:
        seen = contestants(length)[0]["forward, watched"]()
        rounds = interleave({"statistics of all heads": seen.statistics}, 0.0, warm=False)
        value = rounds.best("statistics of all heads")
        ratio = value / results[0]["value"]
        memory = extra_memory(seen.statistics) / 2**20
        results.append(
            {"contestant": "statistics of all heads", "value": value, "unit": "s", "ratio": ratio, "paired": ratio,
             "memory": memory, "rounds": 1}
        )  # fmt: skip
    return results


def main() -> None:
    """Parse, measure, report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--length", type=int, default=16_384, help="tokens N of the forward")
    parser.add_argument("--seconds", type=float, default=60.0, help="time for the rounds per task")
    parser.add_argument("--statistics", action="store_true", help="also the statistics of all heads (O(N^2) time)")
    parser.add_argument("--threads", type=int, help="threads of torch (default: all)")
    parser.add_argument("--json", action="store_true", help="print one JSON value instead of tables")
    options = parser.parse_args()
    begin(options.threads)
    results = measure(options.length, options.seconds, options.statistics)
    reached = [
        limit(f"{r['contestant']}: time / unwatched", r["ratio"], 1.3, r["rounds"])
        for r in results
        if "watched" in r["contestant"]
    ]
    rows = [
        [r["contestant"], f"{r['value']:.4f}", f"{r['ratio']:.4f}", f"{r['paired']:.4f}", f"{r['memory']:.0f}"]
        for r in results
    ]
    report(results, reached, table(["contestant", "best s", "/ first", "paired", "MiB added"], rows), options.json)


if __name__ == "__main__":
    main()
