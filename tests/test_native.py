"""The native step: what the modules compute, bit for bit the same in any company, and nothing where it does not fit."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import weft
from weft.foundation.threads import number_of_threads
from weft.inference.decoding.generate import generate
from weft.inference.decoding.request import GenerationRequest
from weft.inference.fast.native import NativeStack, library
from weft.inference.fast.optimized import optimized
from weft.inference.fast.packed_weights import packed_linear
from weft.inference.fast.quantize import quantize_model
from weft.inference.fast.single_token import SingleTokenStack
from weft.parts.quantized import BlockQuantizedLinear
from weft.parts.token_positions import TokenPositions

needs_compiler = pytest.mark.skipif(library() is None, reason="there is no C compiler on this machine")

ATTENTION = {"kind": "attention", "heads": 6, "head_width": 10}
NORMED = {**ATTENTION, "query_key_norm": {"kind": "rms"}}
SMALL = {"width": 30, "layers": 3, "vocabulary": 53, "length": 400, "mixer": NORMED}
VARIANTS = {
    "plain": {},
    "grouped": {"mixer": {**NORMED, "key_heads": 2, "value_width": 7}},
    "window": {"mixer": [{**ATTENTION, "window": 5}, ATTENTION]},
    "biased": {"mixer": {**ATTENTION, "bias": True}, "feedforward": {"kind": "classic", "bias": True}},
    "layer-norm": {"norm": {"kind": "layer"}, "positions": {"kind": "learned"}},
    "post-norm": {"arrangement": "post-norm", "positions": {"kind": "sinusoidal"}},
    "sandwich-norm": {"arrangement": "sandwich-norm"},
    "parallel": {"arrangement": "parallel"},
    "gated": {"feedforward": {"kind": "gated", "hidden": 37}, "positions": {"kind": "rotary", "fraction": 0.6}},
    "tanh": {"feedforward": {"kind": "classic", "activation": "gelu-tanh"}, "head": {"kind": "linear", "bias": True}},
    "relu": {"feedforward": {"kind": "classic", "activation": "relu"}, "mixer": ATTENTION},
    "dot": {"mixer": {**NORMED, "score": "dot"}},
    "own-scale": {"mixer": {**ATTENTION, "score_scale": 0.07}},
    "capped": {"mixer": {**ATTENTION, "score": "capped-dot", "score_cap": 1.3, "score_scale": 0.41, "key_heads": 3}},
}  # fmt: skip


def model_of(name: str = "plain", preset: str = "nano-gpt", **changes):
    """In float32, every weight drawn."""
    spec = weft.preset(preset).replace(**{**SMALL, **VARIANTS[name], **changes})
    model = weft.build(spec, seed=1).eval()
    random = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(torch.randn(weight.shape, generator=random) * (0.3 if weight.dim() > 1 else 0.1))
            weight += weight.dim() == 1
    return model


def tokens_of(*shape: int, seed: int = 3) -> torch.Tensor:
    return torch.randint(0, 53, shape, generator=torch.Generator().manual_seed(seed))


@torch.inference_mode()
def written(model, prompt, pieces, mask=None, **more):
    """Logits of all pieces after a prompt, through one state."""
    state = model.make_state(prompt.shape[0])
    model(prompt, mask=mask, state=state)
    return torch.cat([model(piece, state=state).logits for piece in pieces], 1)


@needs_compiler
@pytest.mark.parametrize("name", VARIANTS)
def test_it_computes_what_the_modules_compute(name):
    model = model_of(name)
    twin = optimized(model)
    assert isinstance(twin.stack, NativeStack)
    prompt, text = tokens_of(3, 11), tokens_of(3, 83, seed=4)
    real = torch.arange(11) < torch.tensor([[11], [4], [7]])
    pieces = [*text[:, :79].split(1, 1), text[:, 79:]]
    for mask in (None, real):
        expected = written(model, prompt, pieces, mask)
        assert torch.allclose(written(twin, prompt, pieces, mask), expected, atol=2e-4 * float(expected.abs().max()))


@needs_compiler
@pytest.mark.parametrize("weights", ["float32", "int8", "int4"])
def test_a_row_is_bit_for_bit_the_same_in_any_company_and_chunk(weights):
    model = model_of("grouped")
    if weights != "float32":
        quantize_model(model, weights)
    twin = optimized(model)
    assert isinstance(twin.stack, NativeStack)
    start, text = tokens_of(5, 1), tokens_of(5, 12, seed=5)
    together = written(twin, start, text.split(1, 1))
    for row in range(5):
        alone = written(twin, start[row : row + 1], text[row : row + 1].split(5, 1))
        assert torch.equal(alone[0], together[row])


@needs_compiler
@pytest.mark.parametrize("weights", ["float32", "int8", "int4"])
def test_threads_change_no_bit(weights, monkeypatch):
    for file in ("stack", "matrices"):
        monkeypatch.setattr(f"weft.inference.fast.native.{file}.ONE_THREAD_WEIGHTS", 0)
    model, text = model_of("gated"), tokens_of(2, 9)
    if weights != "float32":
        quantize_model(model, weights)
    twin = optimized(model)
    found = []
    for threads in (1, 2, 3):
        with number_of_threads(threads):
            found.append(written(twin, text[:, :1], text.split(1, 1)))
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])


@needs_compiler
@pytest.mark.parametrize("score", [{}, {"score": "capped-dot", "score_cap": 0.9, "score_scale": 0.43}])
def test_an_encoder_decoder_looks_at_real_sources_only(score):
    changes = {"width": 30, "layers": 2, "vocabulary": 53, "mixer": {**ATTENTION, **score}}
    model = model_of("plain", "nano-seq2seq", **changes)
    assert isinstance(optimized(model).decoder, NativeStack)
    sources = [[3, 41, 5], [7, 8, 9, 10, 11], [1]]
    call = {"max_tokens": 17, "source": sources}
    found = generate(model, GenerationRequest([[1]] * 3, **call))
    hooked = model.decoder.blocks[0].register_forward_hook(lambda *_: None)
    by_modules = generate(model, GenerationRequest([[1]] * 3, **call))
    hooked.remove()
    for a, b in zip(found, by_modules, strict=True):
        assert a.tokens == b.tokens
        assert a.log_probabilities == pytest.approx(b.log_probabilities, abs=1e-3)


@pytest.mark.parametrize(
    "changes",
    [
        {"positions": {"kind": "alibi"}},
        {"mixer": {**ATTENTION, "score": "bilinear"}},
        {"mixer": [{**ATTENTION, "score_scale": 0.07}, ATTENTION]},
        {"mixer": [{"kind": "recurrence", "cell": "gru"}, ATTENTION]},
        {"feedforward": {"kind": "experts", "experts": 3, "active": 2}},
    ],
)
def test_what_it_does_not_know_stays_with_torch(changes):
    model = model_of("plain", **changes)
    twin = optimized(model)
    assert isinstance(twin.stack, SingleTokenStack) and not isinstance(twin.stack, NativeStack)
    prompt, pieces = tokens_of(2, 3), tokens_of(2, 7, seed=6).split(1, 1)
    expected = written(model, prompt, pieces)
    assert torch.allclose(written(twin, prompt, pieces), expected, atol=1e-3 * float(expected.abs().max()))


def test_a_lean_stack_computes_the_same_in_double():
    for name in VARIANTS:
        model = model_of(name).double()
        twin, prompt = optimized(model), tokens_of(3, 5)
        real = torch.arange(5) < torch.tensor([[5], [2], [3]])
        pieces = tokens_of(3, 9, seed=8).split(1, 1)
        assert torch.allclose(written(twin, prompt, pieces, real), written(model, prompt, pieces, real), atol=1e-10)


def test_new_weights_are_seen():
    model = model_of()
    first = generate(model, GenerationRequest([[5, 7]], max_tokens=9))[0].tokens
    assert optimized(model) is optimized(model)
    with torch.no_grad():
        for weight in model.stack.parameters():
            weight.mul_(-1.7)
    second = generate(model, GenerationRequest([[5, 7]], max_tokens=9))[0].tokens
    assert second != first
    fresh = model_of()
    fresh.load_state_dict(model.state_dict())
    assert generate(fresh, GenerationRequest([[5, 7]], max_tokens=9))[0].tokens == second


def test_two_threads_write_by_one_model():
    model = model_of()
    prompts = [[n, n + 1] for n in range(12)]
    alone = [generate(model, GenerationRequest([prompt], max_tokens=40))[0].tokens for prompt in prompts]
    with ThreadPoolExecutor(4) as pool:
        together = list(
            pool.map(lambda prompt: generate(model, GenerationRequest([prompt], max_tokens=40))[0].tokens, prompts)
        )
    assert together == alone


def test_int8_weights_stay_near_and_a_tied_head_gets_its_own():
    model = model_of("tanh", head={"kind": "tied"})
    tokens = tokens_of(2, 40)
    with torch.inference_mode():
        before = model(tokens).logits.log_softmax(-1)
        quantize_model(model)
        after = model(tokens).logits.log_softmax(-1)
    assert isinstance(model.head.linear, BlockQuantizedLinear) and model.embedding.weight.dtype == torch.float32
    assert 0 < (before - after).abs().mean() < 0.02 * before.abs().mean()
    with pytest.raises(weft.WeftError, match="choose int8, int4"):
        quantize_model(model, "int3")


def test_a_packed_product_is_the_product():
    weight, bias, x = torch.randn(700, 400), torch.randn(700), torch.randn(3, 400)
    assert torch.allclose(packed_linear(weight, bias)(x), x @ weight.T + bias, atol=1e-3)


def test_without_a_compiler_there_is_none(tmp_path):
    code = "from weft.inference.fast.native import library; print(library())"
    for setting in ({"WEFT_NATIVE": "0"}, {"PATH": "", "CC": ""}, {"PATH": "", "CC": "/bin/false"}):
        environment = {"HOME": str(tmp_path), "WEFT_CACHE": str(tmp_path), "PATH": "/usr/bin", **setting}
        done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
        assert done.stdout.strip() == "None"


def test_weights_made_in_inference_mode_are_read_again_after_a_change(monkeypatch):
    """They have no version that tells of the change, and large ones are copied."""
    monkeypatch.setattr("weft.inference.fast.native.matrices.WORTH_COPYING", 1)
    with torch.inference_mode():
        model = weft.build("nano-llama").eval()
        tokens = torch.tensor([[3]])
        for _ in range(2):
            twin = optimized(model)
            found = twin(tokens, state=twin.make_state(1)).logits
            assert torch.allclose(found, model(tokens).logits, atol=1e-5)
            for weight in model.parameters():
                weight.mul_(1.7).add_(0.1)


@needs_compiler
def test_padded_positions_without_a_mask_are_not_taken():
    """Their angles would stand before the table: torch's operations, which know padding, run instead."""
    model = model_of("plain")
    twin = optimized(model)
    assert isinstance(twin.stack, NativeStack)
    x = torch.randn(2, 3, 30, generator=torch.Generator().manual_seed(5))
    for positions in ([[-1, 0, 1], [0, 1, 2]], [[-(10**9), 0, 1], [0, 1, -1]]):
        token_positions = TokenPositions.of(torch.tensor(positions))
        found = []
        for stack in (twin.stack, model.stack):
            with torch.inference_mode():
                state = model.make_state(2)
                found.append(stack.run_blocks(x, token_positions, None, state, None, None))
        real = torch.tensor(positions) >= 0
        assert torch.equal(found[0][real], found[1][real])
