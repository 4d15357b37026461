"""The compiled code under AddressSanitizer and UBSan: random models, shapes, lengths and paddings, and its results.

Run as a program, with libasan preloaded: the first access out of bounds ends it with a report. Fresh tensors are full
of NaN, so that what is read before it is written is seen in the results.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[1]))

SANITIZED = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer", "-g1", "-O1")
NORMS = ({"kind": "layer"}, {"kind": "rms"}, {"kind": "rms-zero-centered"})
POSITIONS = ({"kind": "learned"}, {"kind": "sinusoidal"}, {"kind": "rotary"}, {"kind": "rotary", "fraction": 0.5})


def build_by(*defines: str) -> None:
    """Let the libraries be built with sanitizers, and weights lie in memory of their own, with bounds."""
    from weft.foundation import native_code
    from weft.inference.fast.native import matrices, stack

    native_code.FLAGS = (*native_code.FLAGS, *SANITIZED, *defines)
    native_code.COMPILE_SECONDS = 600
    matrices.CHUNK = 0
    matrices._private_memory = lambda size: torch.zeros(size, dtype=torch.uint8).numpy()  # type: ignore[assignment,return-value]
    matrices.WORTH_COPYING = 0
    matrices.ONE_THREAD_WEIGHTS = stack.ONE_THREAD_WEIGHTS = 0
    torch.use_deterministic_algorithms(True)


def near(found: torch.Tensor, exact: torch.Tensor, part: float = 2e-3) -> bool:
    """Whether they are equal but for the rounding of float32."""
    if not found.numel():
        return found.shape == exact.shape
    return bool((found.double() - exact.double()).abs().max() <= part * (1e-3 + exact.double().abs().max()))


def draw_spec(drawn: random.Random, preset: str) -> Any:
    """A small model of odd sizes that the native step takes."""
    import weft

    heads = drawn.randrange(1, 7)
    groups = drawn.choice([n for n in range(1, heads + 1) if heads % n == 0])
    mixer: dict[str, Any] = {"kind": "attention", "heads": heads, "head_width": 4 * drawn.randrange(1, 11)}
    if drawn.random() < 0.5:
        mixer["key_heads"] = groups
    if drawn.random() < 0.4:
        mixer["value_width"] = drawn.randrange(1, 40)
    if drawn.random() < 0.3:
        mixer |= {"score": "capped-dot", "score_cap": 1.3, "score_scale": 0.4}
    if drawn.random() < 0.3:
        mixer["query_key_norm"] = {"kind": drawn.choice(("rms", "layer"))}
    mixer["bias"] = drawn.random() < 0.5
    windowed = {**mixer, "window": drawn.randrange(1, 20)}
    feedforward: dict[str, Any] = {"kind": drawn.choice(("classic", "gated")), "hidden": drawn.randrange(1, 90)}
    if feedforward["kind"] == "classic":
        feedforward |= {"activation": drawn.choice(("relu", "gelu", "gelu-tanh", "squared-relu")), "bias": True}
    changes: dict[str, Any] = {
        "width": 2 * drawn.randrange(1, 45), "layers": drawn.randrange(1, 4), "vocabulary": drawn.randrange(2, 99),
        "length": 400, "feedforward": feedforward, "norm": drawn.choice(NORMS[:2]),
        "arrangement": drawn.choice(("pre-norm", "post-norm", "sandwich-norm", "parallel")),
    }  # fmt: skip
    if preset == "nano-gpt":
        changes |= {"mixer": drawn.choice((mixer, [windowed, mixer])), "positions": drawn.choice(POSITIONS)}
    else:
        changes |= {"mixer": mixer, "arrangement": "pre-norm"}
    return weft.preset(preset).replace(**changes)


def draw_model(drawn: random.Random, preset: str) -> Any:
    """Its weights are all drawn, and sometimes of few bits."""
    import weft
    from weft.inference.fast.quantize import quantize_model

    model = weft.build(draw_spec(drawn, preset), seed=drawn.randrange(99)).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(torch.randn(weight.shape) * 0.2 + (weight.dim() == 1))
    if drawn.random() < 0.5:
        quantize_model(model, drawn.choice(("int8", "int4")))
    return model


@torch.inference_mode()
def decode(drawn: random.Random) -> None:
    """Texts of random lengths and paddings, written in random pieces, as the modules compute them."""
    from weft.inference.fast.native import NativeStack
    from weft.inference.fast.optimized import optimized

    model = draw_model(drawn, "nano-gpt")
    twin = optimized(model)
    assert isinstance(twin.stack, NativeStack)
    batch, length = drawn.choice((0, 1, 1, 2, 3, 5, 9, 40)), drawn.choice((1, 2, 7, 33, 300))
    length = length if batch < 9 else min(length, 7)
    pieces = [drawn.randrange(1, 9) for _ in range(drawn.randrange(1, 7))]
    tokens = torch.randint(0, model.embedding.weight.shape[0], (batch, length + sum(pieces)))
    mask = None
    if drawn.random() < 0.5:
        mask = torch.arange(length) < torch.tensor([drawn.randrange(0, length + 1) for _ in range(batch)])[:, None]
    found = []
    for one in (model, twin):
        state = one.make_state(batch)
        one(tokens[:, :length], mask=mask, state=state)
        found.append(torch.cat([one(p, state=state).logits for p in tokens[:, length:].split(pieces, 1)], 1))
    assert near(found[1], found[0], 0.05), (found[1] - found[0]).abs().max()


@torch.inference_mode()
def decode_by_sources(drawn: random.Random) -> None:
    """A decoder that looks at sources of other lengths, some of them padded."""
    from weft.inference.decoding.generate import generate
    from weft.inference.decoding.request import GenerationRequest
    from weft.inference.fast.native import NativeStack
    from weft.inference.fast.optimized import optimized

    model = draw_model(drawn, "nano-seq2seq")
    assert isinstance(optimized(model).decoder, NativeStack)
    sources = [[drawn.randrange(2) for _ in range(drawn.randrange(1, 40))] for _ in range(drawn.randrange(1, 6))]
    generate(model, GenerationRequest([[1]] * len(sources), max_tokens=drawn.randrange(1, 20), source=sources))


@torch.inference_mode()
def multiply(drawn: random.Random) -> None:
    """Matrices of blocks as files hold them, of each kind, with rows of every number."""
    from weft.inference.fast.native import NativeMatrix, library
    from weft.inference.fast.native.layout import BLOCK_KINDS
    from weft.parts.block_formats import block_format
    from weft.parts.quantized import BlockMatrix, BlockSegment

    columns, native = drawn.choice((1, 31, 32, 33, 100, 256, 300, 520)), library()
    assert native is not None
    segments = [BlockSegment(drawn.choice(BLOCK_KINDS), drawn.randrange(1, 40)) for _ in range(drawn.randrange(1, 4))]
    size = sum(block_format(one.kind).row_bytes(columns) * one.rows for one in segments)
    stored = torch.randint(0, 256, (size,), dtype=torch.uint8)
    weight = BlockMatrix(stored, segments, columns)
    x = torch.randn(drawn.choice((1, 2, 3, 7, 8, 9, 31, 100)), columns)
    y = NativeMatrix(native, weight, drawn.choice((None, torch.randn(weight.rows))))(x)
    assert y is not None and y.shape == (len(x), weight.rows)
    plain, wide = torch.randn(drawn.randrange(1, 50), columns), x[:32]
    y = NativeMatrix(native, plain, None)(wide)
    assert y is not None and near(y, wide.double() @ plain.double().T)


@torch.inference_mode()
def summarize(drawn: random.Random) -> None:
    """The likeliest of a row and its log-sum-exp, with what is no number too."""
    from weft.inference.fast.native.summaries import likeliest, log_sum_exp

    logits = torch.randn(drawn.randrange(1, 6), drawn.choice((1, 7, 8, 9, 100, 4095, 4096, 4097, 9000)))
    if drawn.random() < 0.3:
        logits[-1, drawn.randrange(logits.shape[1])] = drawn.choice((float("nan"), float("inf"), -float("inf")))
    assert torch.equal(likeliest(logits), logits.argmax(-1))
    assert torch.allclose(log_sum_exp(logits), logits.logsumexp(-1), equal_nan=True, atol=1e-4)


def train_parts(drawn: random.Random) -> None:
    """GELU, layer norm and attention with their gradients, against torch's."""
    from torch.nn import functional as F

    from weft.parts import native

    rows, width = drawn.choice((0, 1, 3, 17, 300)), drawn.choice((1, 15, 16, 17, 100))
    x, gamma, beta = torch.randn(rows, width), torch.randn(width), drawn.choice((None, torch.randn(width)))
    pairs: list[tuple[Callable[..., Any], Callable[..., Any], list[Any]]] = [
        (native.gelu_tanh, lambda x: F.gelu(x, approximate="tanh"), [x]),
        (
            lambda x, gamma, beta: native.layer_norm(x, gamma, beta, 1e-5),
            lambda x, gamma, beta: F.layer_norm(x, (width,), gamma, beta),
            [x, gamma, beta],
        ),
    ]
    length, head = drawn.randrange(129, 257), 16 * drawn.randrange(1, 5)
    qkv = [torch.randn(2, length, 2, head).transpose(1, 2) for _ in range(3)]
    if native.suits_attention(*qkv):
        pairs.append((
            lambda q, k, v: native.attention(q, k, v, 0.3),
            lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.3),
            qkv,
        ))  # fmt: skip
    for pair in pairs:
        expect_alike(*pair)


def expect_alike(own: Callable[..., Any], torchs: Callable[..., Any], given: list[Any]) -> None:
    """The same outputs and gradients, torch's in float64."""
    slope, found = None, []
    for call, kind in ((own, torch.float32), (torchs, torch.float64)):
        inputs = [None if t is None else t.detach().to(kind).requires_grad_() for t in given]
        y = call(*inputs)
        slope = torch.randn_like(y) if slope is None else slope
        found.append([y, *torch.autograd.grad(y, [t for t in inputs if t is not None], slope.to(kind))])
    assert all(near(*both) for both in zip(*found, strict=True)), own


def linear_maps(drawn: random.Random) -> None:
    """Linear maps with their gradients, and what is added to outputs that are there, against torch's."""
    from torch.nn import functional as F

    from weft.parts import native

    M, N, K = (drawn.choice((1, 2, 11, 12, 13, 31, 32, 33, 97, 100, 1601)) for _ in range(3))
    x, weight, bias = torch.randn(M, K), torch.randn(N, K), drawn.choice((None, torch.randn(N)))
    expect_alike(native.linear, F.linear, [x, weight, bias])
    y, dx, dW, db = torch.randn(M, N), torch.randn(M, K), torch.randn(N, K), torch.randn(N)
    exact = [t.double() for t in (x, weight, y, dx, dW, db)]
    sums = (exact[2] + exact[0] @ exact[1].T, exact[3] + exact[2] @ exact[1], exact[4] + exact[2].T @ exact[0])
    found = native.linear_to_x(dx, y, weight, add=True), native.linear_to_weights(dW, y, x, db, add=True)
    assert near(db, exact[5] + exact[2].sum(0)) and near(native.linear_into(y, x, weight, add=True), sums[0])
    assert near(found[0], sums[1]) and near(found[1], sums[2])


def update(drawn: random.Random) -> None:
    """Clipping and AdamW over weights of any sizes, some without gradients, against torch's in float64."""
    from weft.training.native import OneCallAdamW, clip_gradients

    sizes = [drawn.choice((0, 1, 7, 16, 33, 1000, 20_000)) for _ in range(drawn.randrange(1, 6))]
    own = [nn.Parameter(torch.randn(size)) for size in sizes]
    exact = [nn.Parameter(w.detach().double()) for w in own]
    ours, theirs = OneCallAdamW(own, lr=1e-2, eps=1e-6, fused=True), torch.optim.AdamW(exact, lr=1e-2, eps=1e-6)
    for _ in range(3):
        for weight, other in zip(own, exact, strict=True):
            weight.grad = None if drawn.random() < 0.1 else torch.randn_like(weight)
            other.grad = None if weight.grad is None else weight.grad.double()
        for weights, optimizer in ((own, ours), (exact, theirs)):
            if weights is own:
                clip_gradients(weights, 1.0)
            else:
                nn.utils.clip_grad_norm_(weights, 1.0)
            optimizer.step()
    assert all(near(a.detach(), b.detach(), 1e-4) for a, b in zip(own, exact, strict=True))


def overstep(_: random.Random) -> None:
    """One number more than there is: the sanitizer has to see it."""
    from weft.parts.native import kernels

    x, y, found = torch.randn(16), torch.empty(16), kernels()
    assert found is not None
    found.weft_gelu(x.data_ptr(), y.data_ptr(), 17, 1)


CASES = (decode, decode, decode, decode_by_sources, multiply, summarize, train_parts, linear_maps, update)


def main(seconds: float, seed: int, *words: str) -> None:
    """Cases until the time is over; how many of each, as JSON."""
    build_by(*(word for word in words if word.startswith("-D")))
    from weft.inference.fast.native import library
    from weft.parts.native import kernels
    from weft.training.native.library import updates

    assert library() and kernels() and updates()  # built before the time begins
    drawn, end = random.Random(seed), time.monotonic() + seconds
    torch.manual_seed(seed)
    counts: dict[str, int] = {}
    cases = (overstep,) if "overstep" in words else CASES
    while time.monotonic() < end or len(counts) < len(set(cases)):
        for case in cases:
            torch.set_num_threads(drawn.choice((1, 1, 2, 3)))
            case(drawn)
            counts[case.__name__] = counts.get(case.__name__, 0) + 1
    print(json.dumps(counts))


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    os.environ.pop("LD_PRELOAD", None)  # compilers need no sanitizer
    main(float(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])
