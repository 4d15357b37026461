"""Explain: one attention output unfolded into its numbers: formula, actual values, and the part that computed them.

    print(explain(seen, layer=2, head=1, row=5))

For every score kind, our own attention, recurrent attention and other libraries' dot products. A score explains itself
(`weft.parts.scores`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from weft.foundation.errors import WeftError
from weft.foundation.numerics import widen
from weft.inspection.recording.attention_records import (
    AlignmentRecord,
    AttentionRecord,
    Kind,
    PartAttentionRecord,
)
from weft.inspection.recording.calls import pick
from weft.inspection.recording.kernel_records import DeferredAttentionRecord, KernelAttentionRecord
from weft.inspection.recording.watch import Seen, watch
from weft.parts.attention import PlainCrossAttention
from weft.parts.scores import ScaledDot, Score, ScoreStep, scaled_steps, softmax_steps

SHOWN_KEYS, SHOWN_NUMBERS = 8, 6
NOTHING = 1e-5


@dataclass(frozen=True)
class ExplanationStep:
    """One step: what it is, its formula, its numbers (by name, one row per key where `keys`), the part that did it."""

    name: str
    formula: str
    values: dict[str, Tensor]
    part: str
    keys: bool = True


@dataclass(frozen=True)
class Explanation:
    """All steps from query to output of one head in one row. `weights` (S), `output` (V); prints as text.

    `row_name` and `key_names` name tokens; `shown` are the keys in the text: those that count most, in their order.
    """

    steps: list[ExplanationStep]
    weights: Tensor
    output: Tensor
    row_name: str
    key_names: list[str]
    title: str = ""
    shown: list[int] = field(default_factory=list)

    def step(self, name: str) -> ExplanationStep:
        """One step by its name."""
        for step in self.steps:
            if step.name == name:
                return step
        raise WeftError(f"there is no step {name!r}: choose one of {', '.join(step.name for step in self.steps)}")

    def __str__(self) -> str:
        lines = [self.title, ""] if self.title else []
        for number, step in enumerate(self.steps, 1):
            lines.append(f"{number}. {step.name}: {step.formula}   [{step.part}]")
            for name, value in step.values.items():
                lines += self._rows(name, value) if step.keys and value.dim() else [f"     {name} = {numbers(value)}"]
        return "\n".join(lines)

    def _rows(self, name: str, value: Tensor) -> list[str]:
        width = max(len(self.key_names[n]) for n in self.shown) + 2
        lines = [f"     {name} {f'({self.key_names[n]})':{width}} = {numbers(value[n])}" for n in self.shown]
        rest = value.shape[0] - len(self.shown)
        return lines if not rest else [*lines, f"     ... and {rest} more keys"]


def numbers(value: Tensor) -> str:
    """A number, or a vector with its first numbers, in few digits."""
    if not value.dim():
        return f"{float(value):.4g}"
    shown = " ".join(f"{float(n):.4g}" for n in value.flatten()[:SHOWN_NUMBERS])
    return f"[{shown}{' ...' if value.numel() > SHOWN_NUMBERS else ''}]"


def explain(
    seen: Any,
    given: Any = None,
    layer: int = -1,
    head: int = 0,
    row: int = -1,
    batch: int = 0,
    kind: Kind | None = None,
    call: int = -1,
    names: Sequence[str] | None = None,
    row_names: Sequence[str] | None = None,
) -> Explanation:
    """Of what was seen, or of a run on one input: `explain(run, "The animal was too tired", layer=1)`.

    `names`: of the keys; `row_names`: of the queries, where they are others.
    """
    if not isinstance(seen, Seen):
        run = seen
        if given is None:
            raise WeftError("nothing to explain: give what was seen, or a run and an input")
        with watch(run) as seen:
            run.answer([given])
    one = seen.call(call)
    record = one.layer_record(layer, kind)
    query, keys, values = (x[head] for x in one.vectors(record.layer, record.kind, batch))
    where = int(pick(row, query.shape[0])[0])
    scores = seen.scores(record.layer, head, where, batch, record.kind, call)
    look = one.record(record.layer, record.kind, batch)
    look = look.made if isinstance(look, DeferredAttentionRecord) else look
    named = [str(name) for name in names or range(keys.shape[0])]
    rows = [str(name) for name in row_names or (named if len(named) == query.shape[0] else range(query.shape[0]))]
    title = f"{record.kind} attention, layer {record.layer}, head {head}, row {where} ({rows[where]}), by {record.path}"
    added = one.value_bias(record.layer, record.kind, head, where, batch)
    found = _unfold(
        look, query[where], keys, values, scores, head, look.sizes[1], record.path, named, rows[where], title, added
    )
    return _with_given_query(found) if isinstance(_part_at(seen, record.path), PlainCrossAttention) else found


def _part_at(seen: Seen, path: str) -> Any:
    return dict(seen.module.named_modules()).get(path)


def _with_given_query(found: Explanation) -> Explanation:
    """Of an attention without W_Q, and without anything done to its keys."""
    query, keys, *rest = found.steps
    steps = [replace(query, formula="q_i: used as it is given"), replace(keys, formula="k_j = x_j W_K"), *rest]
    return replace(found, steps=steps)


def explain_vectors(
    query: Tensor, keys: Tensor, values: Tensor, score: Score | None = None, names: Sequence[str] | None = None
) -> Explanation:
    """The same for a query [K], keys [S, K] and values [S, V] given by hand, as in a lecture; unmasked."""
    score = score or ScaledDot()
    with torch.no_grad():
        scores = widen(score(query[None, None, None], keys[None, None]))[0, 0, 0]
    named = [str(name) for name in names or range(1, keys.shape[0] + 1)]
    look = AlignmentRecord(torch.zeros(1, 1, 1, 1), None, None, None, score)
    return _unfold(look, query, keys, values, scores, 0, 1, "", named, "q", "")


def _unfold(
    look: AttentionRecord,
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    scores: Tensor,
    head: int,
    heads: int,
    path: str,
    names: list[str],
    row_name: str,
    title: str,
    added: Tensor | None = None,
) -> Explanation:
    query, keys, values = widen(query), widen(keys), widen(values)
    steps = [
        ExplanationStep(
            "query", "q_i = x_i W_Q, normalized and rotated where asked for", {"q": query}, _in(path, "project"), False
        ),
        ExplanationStep(
            "keys", "k_j = x_j W_K, normalized and rotated where asked for", {"k": keys}, _in(path, "project")
        ),
    ]
    if isinstance(look, AlignmentRecord) and path:
        steps = [
            ExplanationStep(
                "query", "s: the decoder's state", {"s": query}, path.removesuffix("score") + "decoder", False
            ),
            ExplanationStep("keys", "h_j: the encoder's states", {"h": keys}, path.removesuffix("score") + "encoder"),
        ]
    compared, raw = _score_steps(look, query, keys, head, heads, path)
    steps += compared
    steps += _added(look, scores - raw, path)
    hidden = scores.isneginf()
    if bool(hidden.any()):
        seen = torch.where(hidden, torch.zeros_like(scores), torch.ones_like(scores))
        formula = "M_ij = -inf where i may not look at j (shown: 1 = may look)"
        steps.append(ExplanationStep("mask", formula, {"M": seen}, _in(path, "context")))
    weighing = (
        softmax_steps(scores) if isinstance(look, KernelAttentionRecord) else _score_of(look).explain_weights(scores)
    )
    steps += [_named(step, _in(path, "weigh")) for step in weighing]
    weights = weighing[0].values["a"]
    weighted = weights[:, None].to(values.dtype) * values
    output = weighted.sum(0)
    mapped = "v_j = x_j W_V" if path and not isinstance(look, AlignmentRecord) else "v_j"
    steps += [
        ExplanationStep("values", mapped, {"v": values}, _in(path, "project")),
        ExplanationStep("weighted values", "a_ij v_j", {"a v": weighted}, _in(path, "gather")),
    ]
    formula = "y_i = sum_j a_ij v_j"
    if added is not None:
        output, formula = output + added.to(output), "y_i = sum_j a_ij (v_j + b_(j-i))"
        step = "sum_j a_ij b_(j-i), a vector by distance"
        steps.append(ExplanationStep("position's values", step, {"b": added}, _in(path, "gather"), False))
    steps.append(ExplanationStep("output", formula, {"y": output}, _in(path, "gather"), False))
    shown = sorted(weights.abs().topk(min(SHOWN_KEYS, len(weights))).indices.tolist())
    return Explanation(steps, weights, output, row_name, names, title, shown)


def _in(path: str, step: str) -> str:
    return f"{path}.{step}" if path else step


@torch.no_grad()
def _score_steps(
    look: AttentionRecord, query: Tensor, keys: Tensor, head: int, heads: int, path: str
) -> tuple[list[ExplanationStep], Tensor]:
    """The steps that the score itself gives, and e_ij without bias and mask."""
    part = _in(path, "score") if not path.endswith("score") else path
    if isinstance(look, KernelAttentionRecord):
        scale = 1 / math.sqrt(query.shape[-1]) if look.scale is None else look.scale
        steps = scaled_steps(keys @ query, scale, f"e_ij = {scale:.4g} q_i.k_j")
    else:
        steps = _score_of(look).explain(query, keys, head, heads)
    return [_named(step, part) for step in steps], steps[-1].values["e"]


def _score_of(look: AttentionRecord) -> Score:
    score = getattr(look, "score", None)
    if not isinstance(score, Score):
        raise WeftError("the scores of this attention are not known: it shows its weights only")
    return score


def _named(step: ScoreStep, part: str) -> ExplanationStep:
    return ExplanationStep(step.name, step.formula, step.values, _in(part, step.weight).rstrip("."), step.per_key)


def _added(look: AttentionRecord, rest: Tensor, path: str) -> list[ExplanationStep]:
    """What the position or a mask that is added changes."""
    rest = rest.masked_fill(~rest.isfinite(), 0.0)
    if float(rest.abs().max()) < NOTHING:
        return []
    if isinstance(look, PartAttentionRecord) and look.context.has_bias:
        name = type(look.context.position).__name__
        return [
            ExplanationStep("position", f"e_ij + bias of {name}, by the distance i - j", {"b": rest}, _in(path, name))
        ]
    if isinstance(look, KernelAttentionRecord) and look.mask is not None:
        return [ExplanationStep("added mask", "e_ij + m_ij", {"m": rest}, _in(path, "mask"))]
    return []
