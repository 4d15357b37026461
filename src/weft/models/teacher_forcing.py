"""Teacher forcing: the decoder is fed the true target, shifted by one; each place learns to say the next token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from weft.foundation.errors import ShapeError

IGNORED = -100  # the label that torch's cross-entropy leaves out


@dataclass(frozen=True)
class TeacherForcedBatch:
    """Inputs <start> y_1 .. y_n and labels y_1 .. y_n <stop>, [B, T] each; `lengths` [B] count what is real."""

    inputs: Tensor
    labels: Tensor
    lengths: Tensor


def teacher_forcing(targets: Sequence[Sequence[int]], start: int, stop: int, pad: int = 0) -> TeacherForcedBatch:
    """Targets of any lengths as one batch, padded on the right; padding has no label."""
    if not targets:
        raise ShapeError("no targets: a batch needs at least one")
    lengths = torch.tensor([len(target) + 1 for target in targets])
    width = int(lengths.max())
    inputs = torch.full((len(targets), width), pad)
    labels = torch.full((len(targets), width), IGNORED)
    for row, target in enumerate(targets):
        tokens = torch.as_tensor(list(target), dtype=torch.long)
        inputs[row, 0], inputs[row, 1 : len(target) + 1] = start, tokens
        labels[row, len(target)], labels[row, : len(target)] = stop, tokens
    return TeacherForcedBatch(inputs, labels, lengths)
