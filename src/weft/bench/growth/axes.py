"""Axes of growth: what is called at each size, and what theory expects of it: operations and bytes at that size.

`operations(size)` counts what must be done and `memory(size)` what must be kept, so that their exponents over the same
sizes are the theory's; the asymptotic law stands beside them in words. Memory is the peak that a call adds to what is
resident before it: weights, inputs and the optimizer's moments are not in it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from weft.bench.models.gpt2 import GPTShape, gpt2_spec, weft_gpt2
from weft.models.cluster.device_memory import SIZES, device_memory
from weft.models.cluster.layouts import Layout, Pieces
from weft.models.cluster.training_profile import training_profile
from weft.parts.attention import SelfAttention
from weft.parts.attention_context import AttentionContext
from weft.parts.experts import Experts
from weft.parts.linear_attention import LinearAttention
from weft.parts.masks import Causal, Window

WIDTH, HEADS, WINDOW = 256, 4, 256
LONG = tuple(1024 * 2**n for n in range(7))
TEXTS = (2**24, 2**26, 2**28)
Call = Callable[[], Any]


@dataclass(frozen=True)
class GrowthAxis:
    """One axis: its sizes, how a call is made at a size, operations and bytes at a size, and the laws in words.

    Only exponents of `operations` and `memory` count, so both may leave out constant factors. `in_call`: the call gives
    its own seconds. `once`: a size is called once, in a process of its own, since it takes minutes.
    """

    name: str
    sizes: tuple[int, ...]
    make: Callable[[int], Call]
    operations: Callable[[int], float]
    memory: Callable[[int], float]
    law: str
    tiny: tuple[int, ...] = (16, 32)
    in_call: bool = False
    once: bool = False


def attention_call(kind: str) -> Callable[[int], Call]:
    """A forward of one layer of attention over N tokens, projections included."""

    def make(length: int) -> Call:
        torch.manual_seed(0)
        module: nn.Module = LinearAttention(WIDTH, HEADS) if kind == "linear" else SelfAttention(WIDTH, HEADS)
        seen: Any = Causal() & Window(WINDOW) if kind == "window" else Causal()
        x = torch.randn(1, length, WIDTH)

        def call() -> Tensor:
            with torch.inference_mode():
                return module(x, AttentionContext.of(x, seen))

        return call

    return make


def attention_operations(keys: Callable[[int], float]) -> Callable[[int], float]:
    """Projections 8 D^2 per token, and 4 D per query and key."""
    return lambda N: N * (8.0 * WIDTH * WIDTH + 4 * WIDTH * keys(N))


def step_call(
    shape: Callable[[int], GPTShape], length: Callable[[int], int], batch: Callable[[int], int]
) -> tuple[Callable[[int], Call], Callable[[int], float], Callable[[int], float]]:
    """A training step of a GPT whose numbers follow from the size, as `weft train` takes it with AdamW.

    Its call, its operations, and the bytes that the plan of a training expects beside weights and moments.
    """

    def make(size: int) -> Call:
        from weft.bench.cases.train import RandomTokens, weft_loop

        own = shape(size)
        tokens = RandomTokens(own.vocabulary, length(size), batch(size))
        loop = weft_loop(weft_gpt2(own), tokens, "adamw", "float32")

        def call() -> None:
            loop.one_step()
            loop.step += 1

        return call

    def operations(size: int) -> float:
        own = shape(size)
        return own.training_cost(batch(size), length(size)).flops

    def memory(size: int) -> float:
        profile = training_profile(gpt2_spec(shape(size)), length(size))
        rows = Pieces(batch(size), batch(size))
        found = device_memory(profile, Layout(1, 1, 1), SIZES["fp32"], rows, recompute=False)
        return float(found.total - found.weights - found.optimizer)

    return make, operations, memory


def decode_call(prompt: int) -> Call:
    """Seconds per token of 16 tokens after a prompt of this length."""
    import time

    from weft.inference.decoding.generate import stream
    from weft.inference.decoding.request import GenerationRequest

    model = weft_gpt2(DECODED).eval()
    request = GenerationRequest([[5] * prompt], max_tokens=17)

    def call() -> float:
        steps = stream(model, request)
        next(steps)
        start = time.perf_counter()
        for _ in steps:
            pass
        return (time.perf_counter() - start) / 16

    return call


DECODED = GPTShape(6, 384, 6, 256, 16384)


def decode_bytes(length: int) -> float:
    """Bytes read for one token: all weights, and the keys and values of all tokens before it."""
    return 4.0 * (DECODED.matrix_weights + 2 * DECODED.layers * DECODED.width * length)


def experts_call(count: int) -> Call:
    """A forward of 2,048 tokens through E experts of hidden width 512, 2 of them active."""
    torch.manual_seed(0)
    module, x = Experts(WIDTH, 512, count, 2), torch.randn(1, 2048, WIDTH)

    def call() -> Tensor:
        with torch.inference_mode():
            return module(x)

    return call


def read_call(tokenizer: str) -> Callable[[int], Call]:
    """Text of so many bytes: a tokenizer is learned from it, and all of it is encoded and stored."""

    def make(size: int) -> Call:
        import tempfile

        from weft.bench.growth.made_text import write_text_of_size
        from weft.tasks.text import TextOptions, TextTask

        folder = tempfile.TemporaryDirectory()
        path = write_text_of_size(Path(folder.name) / "text.txt", size)

        def call() -> int:
            with folder:  # the text goes too: it may be as large as the disk
                cache = Path(folder.name) / "cache"
                return len(TextTask.prepare([str(path)], TextOptions(tokenizer=tokenizer), 0, cache).train)

        return call

    return make


def constant(_: int) -> float:
    """The same at all sizes."""
    return 1.0


_BY_LENGTH = step_call(lambda T: GPTShape(4, 128, 4, 256, T), lambda T: T, lambda _: 1)
_BY_BATCH = step_call(lambda _: GPTShape(4, 128, 4, 256, 64), lambda _: 64, lambda B: B)
_BY_WIDTH = step_call(lambda D: GPTShape(4, D, D // 32, 256, 64), lambda _: 64, lambda _: 4)
_BY_LAYERS = step_call(lambda L: GPTShape(L, 128, 4, 256, 64), lambda _: 64, lambda _: 4)
_BY_VOCABULARY = step_call(lambda C: GPTShape(2, 128, 4, C, 256), lambda _: 256, lambda _: 2)

AXES = {
    axis.name: axis
    for axis in (
        GrowthAxis("length, causal attention", LONG, attention_call("causal"),
                   attention_operations(lambda N: (N + 1) / 2), float, "N^2 for long N, memory N"),
        GrowthAxis("length, window of 256", LONG, attention_call("window"),
                   attention_operations(lambda N: min(N, WINDOW)), float, "N, memory N"),
        GrowthAxis("length, linear attention", LONG, attention_call("linear"),
                   attention_operations(lambda _: WIDTH / HEADS), float, "N, memory N"),
        GrowthAxis("length, training step", (256, 512, 1024, 2048, 4096, 8192), *_BY_LENGTH,
                   law="N to N^2: attention is a share of the step that grows; memory N", tiny=(8, 16)),
        GrowthAxis("length so far, one token decoded", (512, 1024, 2048, 4096, 8192), decode_call, decode_bytes, float,
                   "weights + keys and values, so between 0 and 1; memory, with the prompt's, N", tiny=(8, 16),
                   in_call=True),
        GrowthAxis("batch, training step", (1, 4, 16, 64, 256), *_BY_BATCH, law="B, memory B", tiny=(1, 2)),
        GrowthAxis("width, training step", (64, 128, 256, 512, 1024), *_BY_WIDTH, law="D^2, memory D to D^2",
                   tiny=(32, 64)),
        GrowthAxis("layers, training step", (1, 2, 4, 8, 16), *_BY_LAYERS, law="L, memory L", tiny=(1, 2)),
        GrowthAxis("vocabulary, training step", (256, 1024, 4096, 16384, 65536), *_BY_VOCABULARY,
                   law="C for large C, memory C", tiny=(17, 31)),
        GrowthAxis("experts, forward", (4, 8, 16, 32, 64), experts_call, constant, constant,
                   "1: two are active; memory 1", tiny=(3, 5)),
        GrowthAxis("bytes of text, characters", TEXTS, read_call("characters"), float, constant, "bytes, memory 1",
                   tiny=(2**12, 2**13), once=True),
        GrowthAxis("bytes of text, bpe", TEXTS, read_call("bpe"), float, constant, "bytes, memory 1",
                   tiny=(2**12, 2**13), once=True),
    )
}  # fmt: skip


def sizes_of(axis: GrowthAxis, quick: bool, largest: float | None) -> tuple[int, ...]:
    """Its sizes; those of texts go on in steps of four up to `largest`, and end there."""
    if quick:
        return axis.tiny
    if largest is None or not axis.name.startswith("bytes"):
        return axis.sizes
    sizes = [size for size in axis.sizes if size <= largest] or [int(largest)]
    while sizes[-1] * 4 <= largest:
        sizes.append(sizes[-1] * 4)
    return (*sizes, int(largest)) if largest > 1.5 * sizes[-1] else tuple(sizes)
