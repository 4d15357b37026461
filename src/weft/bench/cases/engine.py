"""The batching engine: does continuous batching cost anything, and what does it gain?

Three loads on a decoder of GPT-2's kind (`--size small`: 4 layers x 128, `medium`: 6 x 384, `gpt2`: 12 x 768; the
vocabulary of 50,257 tokens):

- together: 16 requests with prompts and texts of equal length, all at once;
- ragged: the same with prompts of different lengths;
- traffic: 48 requests with prompts and texts of different lengths; `generate` takes 16 at a time, each batch until
  its longest text is complete.

Contestants: `generate` on batches of 16 (the reference), an engine driven by `run()`, and one in its own thread.
Targets: at most 1.1 x the time of `generate` together and ragged, less in traffic. Speed is never a test: the exit
code is 0 in any case.
"""

from __future__ import annotations

import argparse
import random
from typing import Any

import torch

import weft
from timing import Call, begin, interleave, limit, report, table
from weft.inference.decoding.generate import generate
from weft.inference.decoding.request import GenerationRequest
from weft.inference.engine.engine import Engine, EngineRequest

SLOTS = 16
SIZES = {"small": (4, 128, 4), "medium": (6, 384, 6), "gpt2": (12, 768, 12)}
Load = list[tuple[list[int], int]]


def build(size: str) -> Any:
    """The model, with random weights."""
    layers, width, heads = SIZES[size]
    spec = weft.preset("gpt2").replace(layers=layers, width=width, length=512, **{"mixer.heads": heads})
    return weft.build(spec, seed=0).eval()


def loads(new: int) -> dict[str, Load]:
    """Prompts and the number of new tokens for each."""
    draw = random.Random(0)

    def prompt(length: int) -> list[int]:
        return [draw.randrange(50257) for _ in range(length)]

    return {
        "together": [(prompt(32), new) for _ in range(SLOTS)],
        "ragged": [(prompt(draw.randrange(4, 61)), new) for _ in range(SLOTS)],
        "traffic": [(prompt(draw.randrange(4, 61)), draw.randrange(1, 2 * new)) for _ in range(3 * SLOTS)],
    }


def contestants(model: Any, load: Load, tokens: int, running: Engine) -> dict[str, Call]:
    """Three ways to generate the same texts."""

    def in_batches() -> None:
        for first in range(0, len(load), SLOTS):
            part = load[first : first + SLOTS]
            generate(model, GenerationRequest([prompt for prompt, _ in part], max_tokens=max(new for _, new in part)))

    engine = Engine(model, slots=SLOTS, prefill_tokens=tokens)

    def driven() -> None:
        for prompt, new in load:
            engine.submit(EngineRequest(prompt, max_tokens=new))
        engine.run()

    def in_a_thread() -> None:
        for handle in [running.submit(EngineRequest(prompt, max_tokens=new)) for prompt, new in load]:
            handle.result()

    return {"generate": in_batches, "engine": driven, "engine in a thread": in_a_thread}


def measure(size: str, new: int, tokens: int, seconds: float) -> list[dict[str, Any]]:
    """One entry per contestant and load."""
    model = build(size)
    results = []
    for name, load in loads(new).items():
        with Engine(model, slots=SLOTS, prefill_tokens=tokens) as running:
            calls = contestants(model, load, tokens, running)
            rounds = interleave(calls, seconds)
        asked = sum(count for _, count in load)
        results += [
            {
                "contestant": contestant,
                "load": name,
                "value": asked / rounds.best(contestant),
                "unit": "tokens/s",
                "ratio": rounds.ratio(contestant, "generate"),
                "paired": rounds.paired(contestant, "generate"),
                "rounds": len(rounds),
            }
            for contestant in calls
        ]
    return results


def main() -> None:
    """Parse, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", choices=SIZES, default="small")
    parser.add_argument("--new", type=int, default=64, help="new tokens per request")
    parser.add_argument("--tokens", type=int, default=512, help="prompt tokens that the engine reads per step")
    parser.add_argument("--seconds", type=float, default=20.0, help="time per load")
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    begin(given.threads)
    with torch.inference_mode():
        results = measure(given.size, given.new, given.tokens, given.seconds)
    limits = [
        limit(f"{one['load']}: {one['contestant']} / generate, time", one["ratio"], 1.1, one["rounds"])
        for one in results
        if one["contestant"] != "generate"
    ]
    rows = [
        (f"{one['load']}, {one['contestant']}", f"{one['value']:.0f}", f"{one['ratio']:.2f}", f"{one['paired']:.2f}")
        for one in results
    ]
    report(results, limits, table(("load, contestant", "tokens/s", "time ratio", "paired"), rows), given.json)


if __name__ == "__main__":
    main()
