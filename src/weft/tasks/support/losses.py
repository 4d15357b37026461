"""Losses that tasks share: cross-entropy of the next token with the logits never whole in memory, and of classes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weft.foundation.numerics import widen
from weft.models.output import Output
from weft.models.teacher_forcing import IGNORED
from weft.parts.linear_cross_entropy import linear_cross_entropy
from weft.parts.outputs import LOGITS_AT_ONCE, CappedHead
from weft.tasks.task import Loss, Split, Task

BALANCE, Z = 0.01, 0.001


def language_loss(module: nn.Module, output: Output, labels: Tensor, count: int, smoothing: float = 0.0) -> Loss:
    """- sum log p(label) over all labels that are not IGNORED; hidden [B, T, D], labels [B, T]."""
    hidden, flat = output.hidden.flatten(0, 1), labels.flatten()
    if count < flat.numel():
        # Padding has no label: the head need not read it.
        real = flat != IGNORED
        hidden, flat = hidden[real], flat[real]
    head: Any = getattr(module, "head", None)
    embedding: Any = getattr(module, "target_embedding", None) or getattr(module, "embedding", None)
    if head is None:  # a module of the user's own, which gives the logits themselves
        total = F.cross_entropy(widen(hidden), flat, reduction="sum", label_smoothing=smoothing)
    elif (shared := getattr(head, "shared_loss", None)) is not None:
        total = shared(hidden, flat, smoothing)
    elif hidden.shape[0] * head.vocabulary > LOGITS_AT_ONCE:
        linear: Any = head.head if isinstance(head, CappedHead) else head
        cap = head.cap if isinstance(head, CappedHead) else None
        rows = max(1, LOGITS_AT_ONCE // head.vocabulary)
        total = linear_cross_entropy(hidden, linear.weight(embedding), linear.bias, flat, rows, smoothing, cap)
    else:
        logits = widen(head(hidden, embedding=embedding))
        total = F.cross_entropy(logits, flat, reduction="sum", label_smoothing=smoothing)
    return Loss(total, count, auxiliary_loss(output))


def token_losses(module: nn.Module, output: Output, labels: Tensor) -> Tensor:
    """- log p of each label [B, T], 0 where it is IGNORED; some rows at a time, without gradients."""
    head: Any = getattr(module, "head", None)
    embedding: Any = getattr(module, "target_embedding", None) or getattr(module, "embedding", None)
    hidden, flat = output.hidden.flatten(0, 1), labels.flatten()
    found = torch.zeros(flat.shape, dtype=torch.float32, device=flat.device)
    vocabulary = hidden.shape[-1] if head is None else head.vocabulary
    for some in (flat != IGNORED).nonzero()[:, 0].split(max(1, LOGITS_AT_ONCE // vocabulary)):
        # A module of the user's own has no head and gives the logits themselves.
        logits = hidden[some] if head is None else head(hidden[some], embedding=embedding)
        found[some] = F.cross_entropy(widen(logits), flat[some], reduction="none").to(found.dtype)
    return found.view_as(labels)


def class_loss(output: Output, labels: Tensor, count: int, smoothing: float = 0.0) -> Loss:
    """- sum log p(class); logits [B, C] or [B, T, C], labels [B] or [B, T]."""
    logits = widen(output.logits)
    total = F.cross_entropy(
        logits.flatten(0, -2), labels.flatten(), reduction="sum", label_smoothing=smoothing, ignore_index=IGNORED
    )
    return Loss(total, count, auxiliary_loss(output))


def auxiliary_loss(output: Output) -> Tensor | None:
    """What experts add: 0.01 balance + 0.001 z, means over the layers."""
    found = [
        weight * output.auxiliary[name]
        for name, weight in (("balance loss", BALANCE), ("z loss", Z))
        if name in output.auxiliary
    ]
    return torch.stack(found).sum() if found else None


def mean_loss(task: Task, module: nn.Module, split: Split, size: int, most: int | None = None) -> float:
    """Nats per answer over a split, or over about `most` tokens of it in evenly spread batches; in evaluation mode."""
    training = module.training
    module.eval()
    device = next(module.parameters()).device
    total, count = 0.0, 0
    with torch.inference_mode():
        for examples in spread(split.batches(size, None), most, split.tokens):
            loss = task.loss(module, split.batch(examples).to(device))
            total, count = total + float(loss.total), count + loss.count
    module.train(training)
    return total / max(count, 1)


def spread(batches: Sequence[Sequence[int]], most: int | None, tokens: int) -> Sequence[Sequence[int]]:
    """All batches, or so many of them, evenly spread, that they hold about `most` of `tokens`."""
    if most is None or tokens <= most:
        return batches
    wanted = max(1, round(len(batches) * most / tokens))
    return [batches[number * len(batches) // wanted] for number in range(wanted)]
