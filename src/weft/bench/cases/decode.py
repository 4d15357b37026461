"""Decoding speed: tokens per second of Weft and its peers, taking turns within one run.

    .venv/bin/python benchmarks/decode.py                      all rows; peers that are not installed are skipped
    .venv/bin/python benchmarks/decode.py gpt2 prefill --json
    .venv/bin/python benchmarks/decode.py lookup --run RUN     prompt lookup on a repetitive text, with real weights

Weights are random and equal for all; each generates `--tokens` tokens greedily after the same prompt. Peers:
`transformers` generate, and llama.cpp (pip install llama-cpp-python, which builds for about ten minutes) on the same
weights written as GGUF.
"""

from __future__ import annotations

import argparse
import copy
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import weft
from timing import begin, interleave, limit, report, table
from weft.inference.decoding.generate import generate
from weft.inference.decoding.request import GenerationRequest
from weft.inference.decoding.speculative import PromptLookup, speculate
from weft.inference.fast.quantize import quantize_model
from weft.models.presets import preset

Writer = Callable[[], Any]
SHAPES = {"gpt2": (12, 768, 12, 50257), "6x384": (6, 384, 6, 256), "4x128": (4, 128, 4, 256)}


def build_gpt2(layers: int, width: int, heads: int, vocabulary: int, length: int = 1024) -> Any:
    """GPT-2 of this shape, with random weights of its own initialization."""
    spec = preset("gpt2")
    mixer = spec.mixer[0].replace(heads=heads)
    return weft.build(
        spec.replace(layers=layers, width=width, mixer=[mixer.to_tree()], vocabulary=vocabulary, length=length), seed=1
    ).eval()


def as_transformers(model: Any) -> Any:
    """The same shape in transformers; speed does not depend on the weights."""
    from transformers import GPT2Config, GPT2LMHeadModel

    s = model.spec
    config = GPT2Config(
        n_layer=s.layers, n_embd=s.width, n_head=s.mixer[0].heads, vocab_size=s.vocabulary, n_positions=s.length
    )
    return GPT2LMHeadModel(config).eval()


def by_transformers(model: Any, prompts: torch.Tensor, tokens: int) -> Writer:
    settings = {"max_new_tokens": tokens, "min_new_tokens": tokens, "do_sample": False, "pad_token_id": 0}

    def write() -> None:
        with torch.inference_mode():
            model.generate(prompts, attention_mask=torch.ones_like(prompts), **settings)

    return write


def by_weft(model: Any, prompts: torch.Tensor, tokens: int) -> Writer:
    rows = prompts.tolist()
    return lambda: generate(model, GenerationRequest(rows, max_tokens=tokens))


def as_llama(model: Any, folder: Path, kind: str) -> Any:
    """llama.cpp with the weights of a GPT-2 shape, as F32 or Q8_0."""
    import gguf
    from llama_cpp import Llama

    path = folder / f"model-{kind}.gguf"
    if not path.exists():
        write_gguf(gguf, model, path, kind)
    return Llama(str(path), n_ctx=1024, n_threads=torch.get_num_threads(), n_batch=512, verbose=False)


def write_gguf(gguf: Any, model: Any, path: Path, kind: str) -> None:
    """A GPT-2 as llama.cpp reads it, with numbers as tokens."""
    s = model.spec
    out = gguf.GGUFWriter(path, "gpt2")
    out.add_context_length(s.length)
    out.add_embedding_length(s.width)
    out.add_feed_forward_length(4 * s.width)
    out.add_block_count(s.layers)
    out.add_head_count(s.mixer[0].heads)
    out.add_layer_norm_eps(1e-5)
    out.add_tokenizer_model("gpt2")
    out.add_tokenizer_pre("gpt-2")
    out.add_token_list([f"<{n}>" for n in range(s.vocabulary)])
    out.add_token_types([1] * s.vocabulary)
    out.add_token_merges(["< 0"])
    for name, tensor in _gguf_tensors(model):
        values = tensor.detach().float().numpy()
        if kind == "Q8_0" and values.ndim == 2 and not name.startswith("position"):
            q8 = gguf.GGMLQuantizationType.Q8_0
            out.add_tensor(name, gguf.quants.quantize(values, q8), raw_dtype=q8)
        else:
            out.add_tensor(name, np.ascontiguousarray(values))
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()


def _gguf_tensors(model: Any) -> Any:
    yield "token_embd.weight", model.embedding.weight
    yield "position_embd.weight", model.input.position.table
    yield "output_norm.weight", model.stack.norm.gamma
    yield "output_norm.bias", model.stack.norm.beta
    for n, block in enumerate(model.stack.blocks):
        parts = {
            "attn_norm": block.mixer_norm, "attn_qkv": block.mixer.qkv, "attn_output": block.mixer.output,
            "ffn_norm": block.feedforward_norm, "ffn_up": block.feedforward.up, "ffn_down": block.feedforward.down,
        }  # fmt: skip
        for name, part in parts.items():
            weight, bias = (part.gamma, part.beta) if hasattr(part, "gamma") else (part.weight, part.bias)
            yield f"blk.{n}.{name}.weight", weight
            yield f"blk.{n}.{name}.bias", bias


def by_llama(llama: Any, prompt: list[int], tokens: int) -> Writer:
    def write() -> None:
        llama.reset()
        for count, _ in enumerate(llama.generate(prompt, temp=0.0, top_k=1, repeat_penalty=1.0), 1):
            if count == tokens:
                return

    return write


def peers_of(model: Any, prompts: torch.Tensor, tokens: int, folder: Path, llama: bool) -> dict[str, Writer]:
    found: dict[str, Writer] = {}
    try:
        found["transformers"] = by_transformers(as_transformers(model), prompts, tokens)
    except ImportError:
        print("transformers is not installed: skipped")
    if llama and prompts.shape[0] == 1:
        try:
            for kind in ("F32", "Q8_0"):
                found[f"llama.cpp {kind}"] = by_llama(as_llama(model, folder, kind), prompts[0].tolist(), tokens)
        except ImportError:
            print("llama-cpp-python is not installed: skipped")
    return found


def writing(
    name: str, shape: str, batch: int, tokens: int, seconds: float, folder: Path
) -> tuple[list[Any], list[Any]]:
    """Tokens per second of all contestants, and the target ratios."""
    model = build_gpt2(*SHAPES[shape])
    made = torch.Generator().manual_seed(0)
    prompts = torch.randint(3, model.spec.vocabulary, (batch, 8), generator=made)
    contestants = {"weft float32": by_weft(model, prompts, tokens)}
    contestants["weft int8"] = by_weft(quantize_model(copy.deepcopy(model)), prompts, tokens)
    contestants |= peers_of(model, prompts, tokens, folder, shape == "gpt2")
    rounds = interleave(contestants, seconds)
    rows = [
        {"contestant": who, "value": batch * tokens / rounds.best(who), "unit": "tokens/s", "row": name,
         "ratio": rounds.best("weft float32") / rounds.best(who)}
        for who in contestants
    ]  # fmt: skip
    return rows, _limits(name, rounds, contestants)


REACH = {
    "gpt2": [("weft float32", "transformers", 1.8), ("weft float32", "llama.cpp F32", 0.95),
             ("weft int8", "llama.cpp Q8_0", 1.0)],
    "6x384": [("weft float32", "transformers", 5.0)],
    "4x128": [("weft float32", "transformers", 5.0)],
    "batch16": [("weft float32", "transformers", 1.5)],
    "prefill": [("weft float32", "transformers", 1.0), ("weft float32", "llama.cpp F32", 0.95)],
}  # fmt: skip


def _limits(name: str, rounds: Any, contestants: dict[str, Writer]) -> list[dict[str, Any]]:
    return [
        limit(f"{name}: time of {own} over that of {peer}", rounds.ratio(own, peer), 1 / least, len(rounds))
        for own, peer, least in REACH.get(name, [])
        if own in contestants and peer in contestants
    ]  # fmt: skip


def prefill(seconds: float, folder: Path) -> tuple[list[Any], list[Any]]:
    """Prefill of a prompt of 512 tokens, and one generated token."""
    model = build_gpt2(*SHAPES["gpt2"])
    prompt = torch.randint(3, 50257, (1, 512), generator=torch.Generator().manual_seed(0))
    contestants = {"weft float32": by_weft(model, prompt, 1)} | peers_of(model, prompt, 1, folder, True)
    rounds = interleave(contestants, seconds)
    rows = [
        {"contestant": who, "value": 512 / rounds.best(who), "unit": "tokens/s", "row": "prefill",
         "ratio": rounds.best("weft float32") / rounds.best(who)}
        for who in contestants
    ]  # fmt: skip
    return rows, _limits("prefill", rounds, contestants)


def curve() -> tuple[list[Any], list[Any]]:
    """Milliseconds per token by the length generated so far, up to 4,096."""
    model = build_gpt2(6, 384, 6, 256, length=4096)
    times: list[float] = []
    last = time.perf_counter()
    from weft.inference.decoding.generate import stream

    for _ in stream(model, GenerationRequest([[5, 7]], max_tokens=4094)):
        now = time.perf_counter()
        times.append(now - last)
        last = now
    return [
        {"contestant": f"weft float32 at {n}", "value": 1e3 * float(np.median(times[n - 128 : n])), "unit": "ms/token",
         "row": "curve", "ratio": 1.0}
        for n in (256, 512, 1024, 2048, 4094)
    ], []  # fmt: skip


REPEATING = (
    "def area(width, height):\n    return width * height\n\ndef volume(width, height, depth):\n"
    "    return width * height * depth\n\n"
)


def lookup(run: str, tokens: int, seconds: float) -> tuple[list[Any], list[Any]]:
    """Speculative decoding by prompt lookup on repetitive code, with real weights; the text stays the same."""
    opened = weft.load(run)
    tokenizer = opened.tokenizer
    assert tokenizer is not None
    prompt = tokenizer.encode(REPEATING * 3)[-512:]
    plain = generate(opened.module, GenerationRequest([prompt], max_tokens=tokens))[0].tokens
    speculative = speculate(opened.module, GenerationRequest([prompt], max_tokens=tokens), PromptLookup())[0]
    same = plain == speculative.tokens
    contestants: dict[str, Writer] = {
        "weft, one by one": lambda: generate(opened.module, GenerationRequest([prompt], max_tokens=tokens)),
        "weft, prompt look-up": lambda: speculate(
            opened.module, GenerationRequest([prompt], max_tokens=tokens), PromptLookup()
        )[0],
    }
    rounds = interleave(contestants, seconds)
    first = "weft, one by one"
    rows = [
        {"contestant": f"{who}{'' if same else ' (OTHER TEXT)'}", "value": tokens / rounds.best(who),
         "unit": "tokens/s", "row": "lookup", "ratio": rounds.best(first) / rounds.best(who)}
        for who in contestants
    ]  # fmt: skip
    share = rounds.ratio("weft, prompt lookup", first)
    return rows, [limit("lookup: time with speculation over time without", share, 0.5, len(rounds))]


def main() -> None:
    """Measure the given rows, or all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="*", help="gpt2, 6x384, 4x128, batch16, prefill, curve, lookup")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--seconds", type=float, default=60.0, help="time per row")
    parser.add_argument("--run", help="a run with real weights, for lookup")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    begin(given.threads)
    wanted = given.rows or ["gpt2", "6x384", "4x128", "batch16", "prefill", "curve", *(["lookup"] if given.run else [])]
    rows: list[Any] = []
    limits: list[Any] = []
    with tempfile.TemporaryDirectory() as folder:
        for name in wanted:
            if name == "prefill":
                found = prefill(given.seconds, Path(folder))
            elif name == "curve":
                found = curve()
            elif name == "lookup":
                found = lookup(given.run, given.tokens, given.seconds)
            else:
                shape, batch = ("gpt2", 16) if name == "batch16" else (name, 1)
                found = writing(name, shape, batch, given.tokens, given.seconds, Path(folder))
            rows += found[0]
            limits += found[1]
    by_name = {(row["row"], row["contestant"]): row["value"] for row in rows}
    if ("gpt2", "weft float32") in by_name and ("batch16", "weft float32") in by_name:
        share = by_name["gpt2", "weft float32"] / by_name["batch16", "weft float32"]
        limits.append(limit("batch 1 over batch 16, tokens per second", share, 0.25))
    lines = [[row["row"], row["contestant"], f"{row['value']:.4g}", row["unit"], f"{row['ratio']:.2f}"] for row in rows]
    heads = ["row", "contestant", "value", "unit", "weft float32 is x as fast"]
    report(rows, limits, table(heads, lines), given.json)


if __name__ == "__main__":
    main()
