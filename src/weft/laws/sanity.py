"""Laws on soundness: finite rows, distributions, gradients, the first loss, the tokenizer."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from weft.foreign.subject import CallRefused, SubjectCall, subject_code
from weft.laws.finding import Finding
from weft.laws.probe import Probe
from weft.laws.trace import trace
from weft.parts.masks import Graph

TEXTS = ("Hello, world!", "naïve café", "日本語 текст", "a  b\n\tc", "🙂👍🏽", "don't stop: 3.14% of $5")


def finite(probe: Probe) -> Finding:
    """Ordinary content gives finite numbers."""
    law = "finite outputs"
    if torch.isfinite(probe.outputs).all():
        return Finding(law, "holds", f"all outputs are finite, the largest {probe.scale:.3g}")
    cause = "a softmax over nothing (a row whose mask hides all), a division by zero or an overflow"
    path = _first_not_finite(probe, probe.call(probe.content))
    return Finding(law, "broken", "some outputs are not finite", path, cause)


def _first_not_finite(probe: Probe, call: SubjectCall) -> str | None:
    """The first submodule that makes numbers that are not finite out of finite ones."""
    steps = trace(probe.subject.module, lambda: probe.run(call))
    return next((step.path for step in steps if _finite(step.inputs) and not _finite(step.outputs)), None)


def _finite(tensors: list[Tensor]) -> bool:
    return all(bool(torch.isfinite(t).all()) for t in tensors)


def dead_rows(probe: Probe) -> Finding:
    """A row of padding alone, or one that may look nowhere, gives finite numbers."""
    law, T = "rows that see nothing", probe.length
    call = probe.call(probe.content.expand(2, *probe.content.shape[1:]).clone())
    call.real = torch.ones(2, T, dtype=torch.bool)
    call.real[1] = False
    out = probe.run(call)
    if not torch.isfinite(out).all():
        said = "a row of padding alone gives numbers that are not finite"
        return Finding(law, "broken", said, _first_not_finite(probe, call), "softmax over nothing is 0 / 0")
    if probe.subject.library == "weft" and not probe.subject.declares.causal and probe.subject.example is None:
        A = torch.ones(T, T)
        A[1] = 0
        call = probe.call(probe.content)
        call.mask = Graph(A)
        try:
            if not torch.isfinite(probe.run(call)).all():
                return Finding(law, "broken", "a node without edges gives numbers that are not finite")
        except CallRefused as why:
            return Finding(law, "holds", f"a row of padding alone stays finite; a graph is refused: {why.reason}")
    return Finding(law, "holds", "all outputs are finite")


def distributions(probe: Probe) -> Finding:
    """Attention rows are distributions: not negative, and they sum to one, but for rows whose mask hides all."""
    law = "attention rows are distributions"
    if not probe.subject.declares_distributions():
        return Finding(law, "not declared", "its score leaves out the softmax")
    maps = probe.attention_maps()
    worst = 0.0
    for path, A in maps.items():
        sums = A.double().sum(-1)
        sums = torch.where((sums == 0) & _rows_that_see_nothing(probe, sums.shape[-1]), 1.0, sums)
        value = float((sums - 1).abs().max())
        if value > max(1e-5, probe.tolerance) or float(A.min()) < 0:
            cause = "a softmax over the wrong axis, or none"
            return Finding(law, "broken", f"rows of {path} sum to 1 +- {value:.2g}", path, cause, value)
        worst = max(worst, value)
    return Finding(law, "holds", f"{len(maps)} layers, rows sum to 1 +- {worst:.1g}", violation=worst)


def _rows_that_see_nothing(probe: Probe, length: int) -> Tensor:
    """[length], True where the mask of some layer hides every key, such as a node without edges.

    `length`: of the sequence inside the model, where a class token or an image may stand before the content.
    """
    hidden = torch.zeros(length, dtype=torch.bool)
    for mask in probe.subject.declares.masks or ():
        hidden |= ~mask.grid(length).any(1)
    return hidden


def gradients(probe: Probe) -> Finding:
    """A gradient reaches every parameter."""
    law, module = "gradients reach every parameter", probe.subject.module
    parameters = {name: p for name, p in module.named_parameters() if p.requires_grad}
    if not parameters:
        return Finding(law, "not testable", "it has no parameters that learn")
    length = min(max(probe.length, 32), probe.subject.declares.length or 32)
    content = probe.subject.content(4, length, probe.random)
    module.zero_grad(set_to_none=True)
    with torch.enable_grad():
        out = probe.answer(probe.call(content)).double()
        weight = torch.randn(out.shape, generator=probe.random, dtype=torch.float64)
        with subject_code("its gradient fails"):
            (out * weight).sum().backward()
    unreached = [name for name, p in parameters.items() if p.numel() and (p.grad is None or not p.grad.any())]
    bad = [name for name, p in parameters.items() if p.grad is not None and not torch.isfinite(p.grad).all()]
    module.zero_grad(set_to_none=True)
    if bad:
        return Finding(law, "broken", f"the gradient of {bad[0]} is not finite", bad[0].rsplit(".", 1)[0])
    heads = [name for name in unreached if name.split(".")[0] in probe.subject.beside]
    unreached = [name for name in unreached if name not in heads]
    if unreached:
        said = f"none reaches {unreached[0]}" + (f" and {len(unreached) - 1} more" if len(unreached) > 1 else "")
        return Finding(
            law, "broken", said, unreached[0].rsplit(".", 1)[0], "a part that is not used, or a detached graph"
        )
    tail = f"; {len(heads)} of heads beside the output asked for are left out" if heads else ""
    return Finding(law, "holds", f"{len(parameters) - len(heads)} parameters{tail}")


def first_loss(probe: Probe) -> Finding:
    """A fresh language model knows nothing: its loss is near the logarithm of the vocabulary."""
    law, vocabulary = "initial loss", probe.subject.declares.vocabulary
    if not probe.subject.loss_inputs() or vocabulary is None or probe.pooled:
        return Finding(law, "not declared", "its outputs are no logits over a vocabulary")
    module = probe.fresh(1).double().eval()
    subject = probe.subject.over(module)
    length = min(32, probe.subject.declares.length or 32)
    content = subject.content(8, length, probe.random)
    call = probe.call(content)
    with torch.no_grad():
        logits = probe.answer(call, subject).double()
    targets = subject.content(8, length, probe.random).flatten()
    loss = float(F.cross_entropy(logits.flatten(0, 1), targets))
    best = math.log(vocabulary)
    if loss > best + 1.0 or loss < best - 0.5:
        return Finding(
            law, "broken", f"{loss:.2f}, but ln {vocabulary} = {best:.2f}", None, "weights start too large", loss - best
        )
    return Finding(law, "holds", f"{loss:.2f}, ln {vocabulary} = {best:.2f}", violation=abs(loss - best))


def tokenizer(probe: Probe, tokenizer: Any) -> Finding:
    """Encoding and decoding gives the text back."""
    law = "tokenizer round trip"
    if tokenizer is None:
        return Finding(law, "not declared", "no tokenizer was given")
    for text in TEXTS:
        with subject_code("calling the tokenizer fails"):
            ids = tokenizer.encode(text)
            back = tokenizer.decode(getattr(ids, "ids", ids))
        if back.strip() != text.strip():
            return Finding(
                law,
                "broken",
                f"{text!r} comes back as {back!r}",
                None,
                "normalization, or characters outside its alphabet",
            )
    return Finding(law, "holds", f"{len(TEXTS)} texts come back, emoji and other scripts among them")
