"""The cases of `weft bench`: what each measures in one line, and the file that does. Loads none of them."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from weft.bench.contest import BenchOptions
from weft.bench.results import CaseResult
from weft.foundation.errors import WeftError

CASES = {
    "train": "a training step of GPTs in three sizes, against plain torch, transformers and x-transformers",
    "decode": "generating token by token, float32 and quantized, against transformers and llama.cpp",
    "prefill": "reading a prompt of 512 tokens, the same models and peers",
    "attention": "self-attention of one layer, forward and training, against PyTorch's own",
    "vision": "ViT-B/16: forward of 4 images and a training step, against transformers",
    "encoder": "MiniLM: vectors of 32 sentences of mixed length, against transformers",
    "recurrent": "a training step of recurrent seq2seq with attention, against torch's nn.GRU and nn.LSTM",
    "experts": "mixtures of 4 to 64 experts against each other and a dense feed-forward",
    "engine": "continuous batching against static batches",
    "serve": "weft serve and other servers under load: time to the first token and between tokens, throughput",
    "sameness": "do answers depend on traffic? texts and log-probabilities alone and in company, of servers",
    "parallel": "one and two processes, DDP and FSDP, against plain training",
    "watching": "a forward and a generation, watched and not",
    "growth": "time and memory against length, batch, width, layers, experts, vocabulary and data, with exponents",
    "quality": "what models reach in a given time on real data (--data DIR), row by row",
    "memory": "peaks of memory: trainings against what `weft plan` predicts, imports against their files",
    "startup": "from the shell to help, to a table, to the first token",
}


def run_case(name: str, options: BenchOptions, report: Callable[[str], None]) -> CaseResult:
    """Measure a case."""
    if name not in CASES:
        raise WeftError(f"there is no case {name!r}: choose from {', '.join(CASES)}")
    module: Any = importlib.import_module(f"weft.bench.cases.{name}")
    return module.run(options, report)
