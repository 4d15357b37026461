"""Run folders with random weights, as training would leave them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

import weft
from weft.checkpoints.run_folder import RunFolder, RunSpec
from weft.data.tokenizers.tokenizer import Tokenizer
from weft.models.build import AnySpec


def write_run(
    path: Path,
    spec: AnySpec,
    task: str = "text",
    tokenizer: Tokenizer | None = None,
    facts: dict[str, Any] | None = None,
) -> Path:
    """A run whose weights are all random, norms and biases too."""
    module = weft.build(spec)
    random = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for weight in module.parameters():
            weight.add_(0.1 * torch.randn(weight.shape, generator=random))
    folder = RunFolder(path)
    path.mkdir(parents=True)
    folder.write_spec(RunSpec(task=task, model=spec.to_tree(), facts=facts or {}))
    if tokenizer is not None:
        folder.write_tokenizer(tokenizer)
    folder.write_model(module.state_dict())
    return path


def llama(vocabulary: int, **more: Any) -> AnySpec:
    """A small model of Llama's kind."""
    sizes = {"width": 24, "layers": 2, "length": 61, "vocabulary": vocabulary, "feedforward.hidden": 37}
    heads = {"mixer.heads": 6, "mixer.key_heads": 2, "mixer.head_width": 10}
    return weft.preset("llama-3.2-1b").replace(**(sizes | heads | {"positions.scaling": None} | more))


def gpt2(vocabulary: int, **more: Any) -> AnySpec:
    """A small model of GPT-2's kind."""
    sizes = {"width": 24, "layers": 2, "length": 61, "vocabulary": vocabulary, "feedforward.hidden": 37}
    return weft.preset("gpt2").replace(**(sizes | {"mixer.heads": 3} | more))
