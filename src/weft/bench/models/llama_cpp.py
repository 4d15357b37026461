"""llama.cpp with a GPT-2 written as GGUF, or with any GGUF file: generation, and logits to compare."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from weft.bench.models.gpt2 import GPTShape, parts_of, weft_gpt2

CONTEXT = 1024


def write_gpt2(shape: GPTShape, path: Path, kind: str) -> Path:
    """Weft's GPT-2 as llama.cpp reads it, with numbers as tokens; `kind`: F32 or Q8_0."""
    import gguf

    out = gguf.GGUFWriter(path, "gpt2")
    out.add_context_length(shape.length)
    out.add_embedding_length(shape.width)
    out.add_feed_forward_length(4 * shape.width)
    out.add_block_count(shape.layers)
    out.add_head_count(shape.heads)
    out.add_layer_norm_eps(1e-5)
    out.add_tokenizer_model("gpt2")
    out.add_tokenizer_pre("gpt-2")
    out.add_token_list([f"<{n}>" for n in range(shape.vocabulary)])
    out.add_token_types([1] * shape.vocabulary)
    out.add_token_merges(["< 0"])
    for name, tensor in parts_of(weft_gpt2(shape)):
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
    return path


class LlamaCpp:
    """A GGUF file in llama.cpp; keys and values in float32, as Weft keeps them."""

    def __init__(self, path: Path, threads: int) -> None:
        from llama_cpp import GGML_TYPE_F32, Llama

        self.model: Any = Llama(
            str(path), n_ctx=CONTEXT, n_threads=threads, n_threads_batch=threads, n_batch=512, verbose=False,
            type_k=GGML_TYPE_F32, type_v=GGML_TYPE_F32,
        )  # fmt: skip

    def generate(self, prompt: Sequence[int], tokens: int) -> list[int]:
        """The first `tokens` tokens after the prompt, greedily."""
        self.model.reset()
        found = []
        for token in self.model.generate(list(prompt), temp=0.0, top_k=1, repeat_penalty=1.0):
            found.append(int(token))
            if len(found) == tokens:
                break
        return found

    def log_probabilities(self, prompt: Sequence[int], tokens: Sequence[int]) -> list[float]:
        """log p of each of these tokens after the prompt."""
        self.model.reset()
        self.model.eval(list(prompt))
        found = self.model._ctx.get_logits()
        logits = np.ctypeslib.as_array(found, shape=(self.model.n_vocab(),)).astype(np.float64)
        top = logits.max()
        total = top + math.log(np.exp(logits - top).sum())
        return [float(logits[token] - total) for token in tokens]
