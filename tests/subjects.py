"""What the contract suite runs over: every preset, shrunk to small distinct sizes, and how each family is called."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import weft
from weft.parts.experts import Experts
from weft.parts.masks import Mask

VOCABULARY, LENGTH, LAYERS = 53, 41, 2


def shrink(spec: Any) -> Any:
    """The same kinds with small numbers: width 30 or 32, primes elsewhere."""
    changes: dict[str, Any] = {"initialization": {"scheme": "fan-in", "embedding": 1.0}, "dropout": 0.0}
    if spec.family == "recurrent-seq2seq":
        return spec.replace(vocabulary=VOCABULARY, target_vocabulary=47, width=13, hidden=11, **changes)
    mixers = _mixers(spec.mixer)
    width = 32 if any(m.get("key_heads") for m in mixers) else 30
    feedforward = spec.feedforward.to_tree()
    if feedforward["kind"] != "none":
        feedforward["hidden"] = 37
    if feedforward["kind"] == "experts":
        feedforward |= {"experts": 5, "active": 2, "hidden": 19}
    changes |= {"width": width, "layers": LAYERS, "mixer": mixers, "feedforward": feedforward}
    if spec.family in ("decoder", "encoder-decoder", "image-text"):
        changes |= {"vocabulary": VOCABULARY, "length": LENGTH}
    if spec.family == "encoder-decoder":
        small = {"channels": 5, "length": LENGTH} if spec.source.kind in ("vectors", "series") else {}
        small |= {"patch": 3} if spec.source.kind == "series" else {}
        small |= {"image": 12, "patch": 4} if spec.source.kind == "patches" else {}
        changes["source"] = spec.source.to_tree() | small
        own = spec.encoder.mixer and _mixers(spec.encoder.mixer)
        changes["encoder"] = spec.encoder.to_tree() | {"width": spec.encoder.width and 36, "mixer": own}
    if spec.family == "encoder":
        changes |= {"length": LENGTH, "output": {**spec.output.to_tree(), "hidden": None, "classes": 3}}
        changes["input"] = spec.input.to_tree() | (
            {"vocabulary": VOCABULARY} if spec.input.kind == "tokens" else {"channels": 5}
        )
    if spec.family == "vision":
        changes |= {"image": 12, "patch": 4, "classes": 7}
    if spec.family == "image-text":
        changes |= {"image": 12, "patch": 4}
    if spec.family == "series":
        changes |= {"length": LENGTH, "patch": 3, "channels": 2}
    return spec.replace(**changes)


def _mixers(pattern: Any) -> list[Any]:
    mixers = [mixer.to_tree() for mixer in pattern]
    for mixer in mixers:
        if mixer["kind"] == "attention":
            grouped = mixer["key_heads"] not in (None, mixer["heads"])
            mixer |= {"heads": 4 if grouped else 3, "key_heads": 2 if grouped else None, "head_width": None}
            mixer["window"] = mixer["window"] and 7
        if mixer["kind"] == "convolution":
            mixer["kernel"] = 3
    return mixers


def build(spec: Any, seed: int = 0) -> nn.Module:
    """In float64, every bias and scale moved from its neutral start: nothing hides behind a zero or a one."""
    module = weft.build(spec, seed=seed, dtype=torch.float64).eval()
    random = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.3 * torch.randn(parameter.shape, generator=random, dtype=torch.float64))
    return module


@dataclass
class Subject:
    """A model and how it is called: `run(content, mask, state)` gives one output vector a token, [B, T, C]."""

    module: nn.Module

    @property
    def spec(self) -> Any:
        return self.module.spec

    @property
    def declares(self) -> Any:
        return self.module.declares()

    @property
    def exact(self) -> bool:
        """Dense models give differences of exactly 0.0; experts change row counts, so they are judged in float64."""
        return not any(isinstance(part, Experts) for part in self.module.modules())

    def content(self, batch: int, length: int, seed: int = 1) -> Tensor:
        random = torch.Generator().manual_seed(seed)
        if self.spec.family == "series":
            return torch.randn(batch, length, 6, generator=random, dtype=torch.float64)
        if self.spec.family == "encoder" and self.spec.input.kind == "vectors":
            return torch.randn(batch, length, self.spec.input.channels, generator=random, dtype=torch.float64)
        vocabulary = self.declares.vocabulary or VOCABULARY
        return torch.randint(0, vocabulary, (batch, length), generator=random)

    @property
    def source_kind(self) -> Any:
        """The spec of what an encoder-decoder reads; None where it is tokens."""
        found = getattr(self.spec, "source", None)
        return None if found is None or found.kind == "tokens" else found

    @property
    def steps(self) -> int:
        """Entries of a source's second axis that are one token."""
        return getattr(self.source_kind, "steps", 1)

    def source(self, batch: int, length: int = 13, seed: int = 7) -> Tensor:
        """Sources of `length` tokens; images have a size of their own."""
        random = torch.Generator().manual_seed(seed)
        if self.spec.family == "image-text" or getattr(self.source_kind, "kind", "") == "patches":
            return torch.randn(batch, 3, 12, 12, generator=random, dtype=torch.float64)
        if self.source_kind is not None:
            shape = (batch, length * self.steps, self.source_kind.channels)
            return torch.randn(shape, generator=random, dtype=torch.float64)
        return torch.randint(0, VOCABULARY, (batch, length), generator=random)

    def run(
        self,
        content: Tensor,
        mask: Mask | Tensor | None = None,
        state: Any = None,
        positions: Tensor | None = None,
        source: Tensor | None = None,
        begin: bool = True,
    ) -> Tensor:
        family, module = self.spec.family, self.module
        if family == "series":
            values = content.unflatten(-1, (3, 2)).flatten(1, 2)
            return module(values, positions, mask, state).logits.flatten(2)
        if family in ("encoder-decoder", "recurrent-seq2seq"):
            memory = module.encode(self.source(content.shape[0]) if source is None else source)
            return module.decode(content, memory, positions, mask, state).logits
        if family == "image-text":
            images = (self.source(content.shape[0]) if source is None else source) if begin else None
            return module(content, positions, mask, state, images=images).logits
        if family == "encoder":
            out = module(content, positions, mask)
            return out.hidden[:, 1:] if self.spec.class_token else out.hidden
        return module(content, positions, mask, state).logits


def tokens_presets() -> list[str]:
    """All presets but those that see images alone."""
    return [name for name in weft.presets() if weft.preset(name).family != "vision"]


def causal_presets() -> list[str]:
    return [name for name in weft.presets() if weft.preset(name).declares().causal]
