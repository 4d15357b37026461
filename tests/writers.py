"""Models that write, one of every kind, and what each is given."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

import weft
from subjects import VOCABULARY, build, shrink

VARIANTS: dict[str, dict[str, Any]] = {
    "alibi": {"positions": {"kind": "alibi"}},
    "bucketed": {"positions": {"kind": "bucketed", "buckets": 8, "farthest": 13}},
    "learned": {"positions": {"kind": "learned"}},
    "window": {"mixer": {"kind": "attention", "heads": 3, "head_width": 10, "window": 5}},
    "window-alibi": {
        "positions": {"kind": "alibi"},
        "mixer": {"kind": "attention", "heads": 3, "head_width": 10, "window": 5},
    },
    "linear": {"mixer": {"kind": "linear-attention", "heads": 3}, "positions": {"kind": "learned"}},
    "hybrid": {
        "mixer": [
            {"kind": "attention", "heads": 3, "head_width": 10, "window": 4},
            {"kind": "recurrence", "cell": "lstm"},
            {"kind": "attention", "heads": 3, "head_width": 10},
        ],
        "layers": 3,
    },
}
PRESETS = [
    "nano-gpt",
    "nano-moe",
    "nano-rnn",
    "nano-conv",
    "llama-3.2-1b",
    "nano-seq2seq",
    "t5-small",
    "nano-gru-additive",
    "nano-gru-bilinear",
    "nano-gru-dot",
    "nano-gru-plain",
    "nano-image-text",
]
WRITERS = [*PRESETS, *VARIANTS]
PROMPTS = [[5, 17, 3], [11], [5, 17, 3, 19, 2, 29, 31], [7, 7]]
SOURCES = [[3, 41, 5], [7, 8, 9, 10, 11], [1], [2, 13]]


@cache
def writer(name: str, **changes: Any) -> Any:
    """In float64, with an own head and strong mixers: a tied head repeats its input, and no fault would show."""
    spec = shrink(weft.preset(name if name in PRESETS else "nano-gpt"))
    if spec.family != "recurrent-seq2seq":
        changes["head"] = {"kind": "linear"}
    return lively(build(spec.replace(**VARIANTS.get(name, {}), **changes)))


def lively(model: Any) -> Any:
    """Texts that change their tokens all the time."""
    random = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for part, weight in model.named_parameters():
            if "head." in part:
                weight.normal_(generator=random).mul_(0.7 if weight.shape[-1] > 12 else 3.0)
            elif part.endswith("output.weight"):
                weight.mul_(4.0)
            elif model.spec.family == "recurrent-seq2seq":
                weight.mul_(2.5)
    return model


def given(model: Any, rows: list[int]) -> dict[str, Any]:
    """What these rows are conditioned on."""
    if model.declares().seq2seq:
        return {"source": [SOURCES[row] for row in rows]}
    if model.declares().prefix is not None:
        random = torch.Generator().manual_seed(5)
        images = torch.randn(len(SOURCES), 3, 12, 12, generator=random, dtype=torch.float64)
        return {"images": images[rows]}
    return {}


def tiny(name: str, vocabulary: int = 5) -> Any:
    """A model of a few tokens whose every text can be listed."""
    changes: dict[str, Any] = {"vocabulary": vocabulary}
    if weft.preset(name).family == "recurrent-seq2seq":
        changes["target_vocabulary"] = vocabulary
    else:
        changes["head"] = {"kind": "linear"}
    model = lively(build(shrink(weft.preset(name)).replace(**changes), seed=3))
    with torch.no_grad():
        model.head.linear.weight.mul_(0.3)
    return model


def full_logits(model: Any, text: list[int], conditions: dict[str, Any]) -> torch.Tensor:
    """[T, C] by one plain call of the model, without anything of the room under test."""
    tokens = torch.tensor([text])
    with torch.no_grad():
        if "source" in conditions:
            return model(torch.tensor(conditions["source"]), tokens).logits[0]
        return model(tokens, **conditions).logits[0]


__all__ = ["PROMPTS", "SOURCES", "VOCABULARY", "WRITERS", "full_logits", "given", "tiny", "writer"]
