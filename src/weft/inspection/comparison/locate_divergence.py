"""Where two models first diverge on the same input, by how much, and a likely cause.

    print(weft.locate_divergence(mine, theirs, tokens))

Both run as float64 copies, so that rounding does not count. Models with the same submodules are compared tensor by
tensor; others block by block, then by which tensors of one are found in the other.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from weft.foundation.errors import WeftError
from weft.inspection.comparison.activation_trace import ActivationEvent, ActivationTrace, apart, trace_activations
from weft.inspection.comparison.causes import Divergence, likely_cause
from weft.inspection.interventions.interventions import logits_of
from weft.inspection.recording.calling import module_of

EXACT, ROUGH = 1e-9, 1e-4


@dataclass(frozen=True)
class Comparison:
    """The result. `agree`: nothing differs. `path_a`, `path_b`: where they diverge; `layer`: the block's number.

    `difference` and `relative` (to the largest number) at that part; `final`: relative, of the answers. `cause` is a
    name such as "norm epsilon", `evidence` the numbers behind it. `trail`: relative difference after each block.
    """

    agree: bool
    cause: str
    evidence: str
    path_a: str = ""
    path_b: str = ""
    layer: int | None = None
    difference: float = 0.0
    relative: float = 0.0
    final: float = 0.0
    trail: tuple[tuple[str, float], ...] = ()

    def __str__(self) -> str:
        if self.agree:
            return f"the models agree: {self.evidence}"
        where = self.path_a if self.path_a == self.path_b else f"{self.path_a} and {self.path_b}"
        block = "" if self.layer is None else f" (block {self.layer})"
        lines = [
            f"they diverge at {where or 'the model itself'}{block}: by {self.difference:.3g}, {self.relative:.2%} of "
            f"the largest number there; {self.final:.2%} in the answer",
            f"likely cause: {self.cause}: {self.evidence}",
        ]
        lines += [f"  after {path or 'the model'}: {relative:.2g}" for path, relative in self.trail]
        return "\n".join(lines)


def locate_divergence(a: Any, b: Any, *inputs: Any, **keywords: Any) -> Comparison:
    """Call both as `model(*inputs, **keywords)` and find the first tensor that differs."""
    first, second = module_of(a), module_of(b)
    if not inputs and not keywords:
        raise WeftError("nothing to compare on: give tokens (or whatever both models take) as the third argument")
    inputs = tuple(_tokens(a, one) if isinstance(one, str) else one for one in inputs)

    def run(module: nn.Module) -> Any:
        dtype = next((p.dtype for p in module.parameters() if p.is_floating_point()), torch.float32)
        return module(*(_as(one, dtype) for one in inputs), **{name: _as(one, dtype) for name, one in keywords.items()})

    one, two = trace_activations(first, run), trace_activations(second, run)
    limit = EXACT if one.exact and two.exact else ROUGH
    final = apart(one.answer, two.answer)
    if final <= limit:
        return _equal(first, second, run, final)
    divergence = locate(one, two, limit)
    cause, evidence = likely_cause(divergence)
    x, y = divergence.a.tensor, divergence.b.tensor
    same = x.shape == y.shape
    return Comparison(
        False,
        cause,
        evidence,
        divergence.a.path,
        divergence.b.path,
        _layer(divergence.a.path),
        float((x - y).abs().max()) if same and x.numel() else float("inf"),
        apart(x, y),
        final,
        _trail(one, two),
    )


def _equal(a: nn.Module, b: nn.Module, run: Any, final: float) -> Comparison:
    """They agree in float64; say so if they are in different modes, or differ by rounding."""
    if a.training != b.training:
        said = f"a is in {'training' if a.training else 'evaluation'} mode, b is not: dropout acts in one of them only"
        return Comparison(False, "mode", said, final=final)
    said = f"the answers differ by {final:.1g} of the largest number in float64"
    with torch.no_grad():
        try:
            plain = apart(logits_of(run(a)), logits_of(run(b)))
        except (RuntimeError, TypeError):
            plain = 0.0
    if plain > ROUGH:
        types = [str(next(p.dtype for p in m.parameters())).removeprefix("torch.") for m in (a, b)]
        said = f"in float64 they agree to {final:.1g}, as they are ({types[0]}, {types[1]}) they differ by {plain:.1g}"
        return Comparison(False, "precision", said, final=plain)
    return Comparison(True, "none", said, final=final)


def locate(one: ActivationTrace, two: ActivationTrace, limit: float) -> Divergence:
    """The first pair of tensors that should be the same and are not."""
    if {s.path for s in one.events} == {s.path for s in two.events}:
        found = _by_path(one.events, two.events, limit)
        if found is not None:
            return Divergence(*found, one, two, _agreed(one, found[0]), limit)
    within = _diverging_block(one, two, limit)
    mine, theirs = (t.events if w is None else t.inside(w) for t, w in zip((one, two), within, strict=True))
    return _by_value(one, two, mine, theirs, limit)


def _by_path(
    a: list[ActivationEvent], b: list[ActivationEvent], limit: float
) -> tuple[ActivationEvent, ActivationEvent] | None:
    known = {(s.path, s.when, s.visit): s for s in b}
    for own in a:
        other = known.get((own.path, own.when, own.visit))
        if other is None:
            continue
        pairs = zip([own.tensor, *own.others], [other.tensor, *other.others], strict=False)
        if any(apart(x, y) > limit for x, y in pairs):
            return own, other
    return None


def _agreed(trace: ActivationTrace, first: ActivationEvent) -> list[Tensor]:
    """Tensors recorded before the first that differs, newest first."""
    before = trace.events[: trace.events.index(first)]
    return [tensor for s in reversed(before) for tensor in (s.tensor, *s.others)]


def _diverging_block(one: ActivationTrace, two: ActivationTrace, limit: float) -> tuple[str | None, str | None]:
    """The first pair of blocks with equal inputs and different outputs; None where there is no such pair."""
    mine, theirs = one.blocks(), two.blocks()
    if len(mine) != len(theirs) or not mine:
        return None, None
    for own, other in zip(mine, theirs, strict=True):
        before, after = (_apart_at(one, own, two, other, when) for when in ("in", "out"))
        if before is None or before > limit:
            return None, None
        if after is None or after > limit:
            return own, other
    return None, None


def _apart_at(one: ActivationTrace, own: str, two: ActivationTrace, other: str, when: str) -> float | None:
    """The relative difference of the inputs (or outputs) of two parts; None where one did not run."""
    x = next((s.tensor for s in one.events if s.path == own and s.when == when), None)
    y = next((s.tensor for s in two.events if s.path == other and s.when == when), None)
    return None if x is None or y is None else apart(x, y)


def _by_value(
    one: ActivationTrace, two: ActivationTrace, mine: list[ActivationEvent], theirs: list[ActivationEvent], limit: float
) -> Divergence:
    """Tensors of one that are found among the other's agree; the first of each that are not found diverge."""
    agreed = [s.tensor for s in mine if any(holds(t.tensor, s.tensor, limit) for t in theirs)]
    lost_a = [s for s in mine if not any(holds(t.tensor, s.tensor, limit) for t in theirs)]
    lost_b = [t for t in theirs if not any(holds(s.tensor, t.tensor, limit) for s in mine)]
    for own in lost_a:
        other = next((t for t in lost_b if t.tensor.shape == own.tensor.shape and t.when == own.when), None)
        if other is not None:
            return Divergence(own, other, one, two, agreed[::-1], limit)
    own = lost_a[0] if lost_a else mine[-1]
    other = next((t for t in lost_b if t.tensor.shape == own.tensor.shape), lost_b[0] if lost_b else theirs[-1])
    return Divergence(own, other, one, two, agreed[::-1], limit)


def holds(whole: Tensor, part: Tensor, limit: float) -> bool:
    """Whether two tensors are equal, or one is a slice of the other's last axis (a fused and a split projection)."""
    if whole.shape == part.shape:
        return apart(whole, part) <= limit
    if whole.dim() != part.dim() or whole.shape[:-1] != part.shape[:-1] or not part.numel() or not whole.numel():
        return False
    if whole.shape[-1] < part.shape[-1]:
        whole, part = part, whole
    first = part.flatten(0, -2)[0]
    row = whole.flatten(0, -2)[0]
    starts = (row[: len(row) - len(first) + 1] - first[0]).abs() <= limit * row.abs().max().clamp(min=1e-12)
    width = part.shape[-1]
    return any(apart(whole[..., n : n + width], part) <= limit for n in starts.nonzero().flatten().tolist())


def _trail(one: ActivationTrace, two: ActivationTrace) -> tuple[tuple[str, float], ...]:
    mine, theirs = one.blocks(), two.blocks()
    found = [(own, _apart_at(one, own, two, other, "out")) for own, other in zip(mine, theirs, strict=False)]
    return tuple((own, relative) for own, relative in found if relative is not None)


def _layer(path: str) -> int | None:
    number = re.search(r"(?:^|\.)(\d+)(?:\.|$)", path)
    return int(number.group(1)) if number else None


def _as(value: Any, dtype: torch.dtype) -> Any:
    return value.to(dtype) if isinstance(value, Tensor) and value.is_floating_point() else value


def _tokens(run: Any, text: str) -> Tensor:
    tokenizer = getattr(run, "tokenizer", None)
    if tokenizer is None:
        raise WeftError("text needs a run with a tokenizer: give tokens as a tensor [B, T]")
    return torch.tensor([tokenizer.encode(text)])
