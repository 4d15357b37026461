"""Reach: how much gradient of an output reaches each input token, near or far.

Without attention the gradient of a late target passes through every step of a recurrence and vanishes (or explodes);
attention shortens the path to one step. g_ts = |d log p(y_t) / d x_s| with x_s the embedding of token s.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from weft.foreign.subject import SubjectCall
from weft.foundation.errors import WeftError
from weft.inference.decoding.conditioning import eval_mode
from weft.inspection.recording.calling import caller, tokens_of
from weft.inspection.recording.function_overrides import FunctionOverrides
from weft.parts.observer import Observer, observing


@dataclass(frozen=True)
class Reach:
    """`matrix` (T, S): the norm of the gradient of output t with respect to input s, a source's where there is one."""

    matrix: Tensor

    def by_distance(self) -> Tensor:
        """(D): the mean over pairs at distance d = t - s, d = 0 .. T - 1; for one sequence."""
        T, S = self.matrix.shape
        return torch.stack([self.matrix.diagonal(-d).mean() for d in range(min(T, S))])

    def by_place(self) -> Tensor:
        """(S): the mean over all outputs, per input token."""
        return self.matrix.mean(0)


class _EmbeddingLeaves(Observer):
    """Makes what embeddings give leaves of the graph, so that gradients with respect to them can be asked for."""

    def __init__(self, module: nn.Module) -> None:
        self.parts = {id(part) for part in module.modules()}
        self.found: list[Tensor] = []

    def on_embedding(self, part: nn.Module, given: Tensor, output: Tensor) -> Tensor:
        return self._leaf(output) if id(part) in self.parts else output

    def foreign(self, run: Any, part: nn.Module, *args: Any, **kwargs: Any) -> Any:
        return self._leaf(run(part, *args, **kwargs))

    def _leaf(self, vectors: Tensor) -> Tensor:
        self.found.append(vectors.detach().requires_grad_())
        return self.found[-1]


def gradient_reach(subject: Any, tokens: Any, source: Any = None) -> Reach:
    """For one text [T], or for a target [T] with respect to the tokens of its `source` [S]."""
    own = caller(subject)
    text = tokens_of(tokens, own.module)[:1]
    given = None if source is None else tokens_of(source, own.module)[:1]
    leaves = _EmbeddingLeaves(own.module)
    with observing(leaves), FunctionOverrides() as overrides, eval_mode(own.module), torch.enable_grad():
        for part in own.module.modules():
            if isinstance(part, nn.Embedding) and not _is_position(own.module, part):
                overrides.on(part, "forward", leaves.foreign)
        logits = own.run(SubjectCall(text, source=given))
    if not leaves.found:
        raise WeftError("none of the model's embeddings ran: the gradient has no token to reach")
    leaf = leaves.found[0]
    half = logits.dtype in (torch.float16, torch.bfloat16)
    chances = (logits[0].float() if half else logits[0]).log_softmax(-1)
    came = torch.cat((text[0, 1:], chances[-1].argmax()[None])) if own.loss_inputs() else chances.argmax(-1)
    rows = []
    for t in range(chances.shape[0]):
        (slope,) = torch.autograd.grad(chances[t, came[t]], leaf, retain_graph=True, allow_unused=True)
        rows.append(torch.zeros(leaf.shape[1]) if slope is None else slope[0].norm(dim=-1).cpu())
    return Reach(torch.stack(rows))


def _is_position(module: nn.Module, part: nn.Module) -> bool:
    """Whether an nn.Embedding holds positions or token types, by its name."""
    names = [name for name, own in module.named_modules() if own is part]
    last = names[0].rsplit(".", 1)[-1] if names else ""
    return isinstance(part, nn.Embedding) and any(word in last for word in ("position", "wpe", "type", "pos_"))
