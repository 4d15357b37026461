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
    "startup": "from the shell to help, to a table, to the first token",
}


def run_case(name: str, options: BenchOptions, report: Callable[[str], None]) -> CaseResult:
    """Measure a case."""
    if name not in CASES:
        raise WeftError(f"there is no case {name!r}: choose from {', '.join(CASES)}")
    module: Any = importlib.import_module(f"weft.bench.cases.{name}")
    return module.run(options, report)
