"""`weft bench engine`: does continuous batching cost anything, and what does it gain?

Three loads on a decoder of GPT-2's kind with its vocabulary of 50,257 tokens (4 layers x 128):

- together: 16 requests with prompts and texts of equal length, all at once;
- ragged: the same with prompts of different lengths;
- traffic: 48 requests with prompts and texts of different lengths; `generate` takes 16 at a time, each batch until its
  longest text is complete.

Contestants: `generate` on batches of 16 (the reference), an engine driven by `run()`, and one in its own thread. Then
speculation: 8 texts of SmolLM2-135M that repeat, or do not, in an engine of 4 slots, without and with prompt look-up.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import weft
from weft.bench.cases.decode import SAMPLINGS, TEXTS, smollm_path
from weft.bench.contest import BenchOptions, Contest, Entry, Work
from weft.bench.models.gpt2 import GPTShape, weft_gpt2
from weft.bench.results import CaseResult
from weft.bench.running.turns import hold_contests
from weft.inference.decoding.generate import generate
from weft.inference.decoding.request import GenerationRequest
from weft.inference.engine.engine import Engine, EngineRequest

SLOTS, NEW, PREFILL = 16, 64, 512
SHAPE = GPTShape(4, 128, 4, 50257, 512)
WAYS = ("generate", "engine", "engine in a thread")
LOOKUPS = ("engine", "engine with look-up")
LOADS = ("together", "ragged", "traffic")
Load = list[tuple[list[int], int]]


def contests(options: BenchOptions) -> list[Contest]:
    """One contest per load."""
    new = 2 if options.quick else NEW
    shape = GPTShape(1, 16, 2, 53, 128) if options.quick else SHAPE
    found = []
    for name in LOADS[-1:] if options.quick else LOADS:
        arguments = {"shape": shape.to_tree(), "load": name, "new": new}
        entries = tuple(Entry(way, "weft.bench.cases.engine:engine_work", arguments | {"way": way}) for way in WAYS)
        amount = sum(count for _, count in load_of(name, new, shape.vocabulary))
        found.append(Contest(name, entries, "tokens", amount, reference=WAYS[0], limits=False))
    path = smollm_path()
    return found if options.quick or path is None else [*found, *(speculation_contest(path, kind) for kind in TEXTS)]


def speculation_contest(path: Path, kind: str) -> Contest:
    """An engine with prompt look-up against one without; the same tokens."""
    arguments = {"path": str(path), "kind": kind}
    entries = tuple(
        Entry(name, "weft.bench.cases.engine:speculation_work", arguments | {"speculative": name != LOOKUPS[0]})
        for name in LOOKUPS
    )
    amount = 2 * len(TEXTS[kind]) * NEW
    return Contest(
        f"speculation, texts that {kind}", entries, "tokens", amount, 0.0, reference=LOOKUPS[0], limits=False
    )


def run(options: BenchOptions, report: Callable[[str], None]) -> CaseResult:
    """Measure the case."""
    return hold_contests("engine", contests(options), (), options, report)


def load_of(name: str, new: int, vocabulary: int) -> Load:
    """Prompts and the number of new tokens for each."""
    draw = random.Random(0)

    def prompt(length: int) -> list[int]:
        return [draw.randrange(vocabulary) for _ in range(length)]

    if name == "together":
        return [(prompt(32), new) for _ in range(SLOTS)]
    if name == "ragged":
        return [(prompt(draw.randrange(4, 61)), new) for _ in range(SLOTS)]
    return [(prompt(draw.randrange(4, 61)), draw.randrange(1, 2 * new)) for _ in range(3 * SLOTS)]


def engine_work(shape: dict[str, int], load: str, new: int, way: str) -> Work:
    """One way to generate the texts; the first tokens of all are compared."""
    own = GPTShape(**shape)
    model = weft_gpt2(own, seed=0).eval()
    asked = load_of(load, new, own.vocabulary)
    call = torch.inference_mode()(_ways(model, asked)[way])
    return Work(call, lambda: {"first tokens": [float(tokens[0]) for tokens in call()]})


def speculation_work(path: str, kind: str, speculative: bool) -> Work:
    """All texts of a kind twice, in half as many slots."""
    run = weft.import_checkpoint(path, Path(tempfile.mkdtemp()) / "run", certificate=False)
    assert run.tokenizer is not None
    prompts = [run.tokenizer.encode(text) for text in 2 * TEXTS[kind]]
    engine = Engine(run.module, slots=len(TEXTS[kind]), prefill_tokens=PREFILL, length=1024, speculative=speculative)

    def call() -> list[int]:
        handles = [engine.submit(EngineRequest(prompt, SAMPLINGS[kind], max_tokens=NEW)) for prompt in prompts]
        engine.run()
        return [token for handle in handles for token in handle.result().tokens]

    return Work(call, lambda: {"tokens": [float(token) for token in call()]})


def _ways(model: Any, asked: Load) -> dict[str, Callable[[], list[list[int]]]]:
    """Texts of all requests, as lists of tokens."""

    def in_batches() -> list[list[int]]:
        found: list[list[int]] = []
        for first in range(0, len(asked), SLOTS):
            part = asked[first : first + SLOTS]
            request = GenerationRequest([prompt for prompt, _ in part], max_tokens=max(new for _, new in part))
            found += [list(text.tokens) for text in generate(model, request)]
        return found

    driven, running = (Engine(model, slots=SLOTS, prefill_tokens=PREFILL) for _ in range(2))
    started: list[Engine] = []  # its thread sleeps between turns

    def by_run() -> list[list[int]]:
        handles = [driven.submit(EngineRequest(prompt, max_tokens=new)) for prompt, new in asked]
        driven.run()
        return [list(handle.result().tokens) for handle in handles]

    def in_a_thread() -> list[list[int]]:
        if not started:
            started.append(running.__enter__())
        handles = [running.submit(EngineRequest(prompt, max_tokens=new)) for prompt, new in asked]
        return [list(handle.result().tokens) for handle in handles]

    return {"generate": in_batches, "engine": by_run, "engine in a thread": in_a_thread}
