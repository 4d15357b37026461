"""Embedding and cross-entropy where each process holds some rows of the vocabulary: neither is gathered.

log p(y) = z_y - log sum_c exp z_c,   z = W h + b,   the sum over rows of all processes   (Shoeybi et al. 2019)
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.utils.checkpoint import checkpoint

from weft.foundation.numerics import widen
from weft.parts.embeddings import TokenEmbedding
from weft.parts.outputs import LOGITS_AT_ONCE, LanguageHead, TiedHead
from weft.training.parallel.collectives import sum_gradients, sum_shares
from weft.training.parallel.local_weights import local_tensor


def share_vocabulary(model: nn.Module, group: ProcessGroup) -> None:
    """Let the embeddings and heads whose rows are divided look up, and compute their losses, by parts; in place."""
    embedding = getattr(model, "target_embedding", None) or getattr(model, "embedding", None)
    for part in model.modules():
        if isinstance(part, TokenEmbedding) and _is_divided(part, group):
            part.look_up = partial(_look_up_own, part, group)  # type: ignore[method-assign]
    for head in model.modules():
        owner: Any = head.linear if isinstance(head, LanguageHead) else embedding
        if isinstance(head, LanguageHead | TiedHead) and _is_divided(owner, group):
            head.shared_loss = SharedLoss(head, owner, group)


def _is_divided(owner: nn.Module | None, group: ProcessGroup) -> bool:
    weight: Any = None if owner is None else owner._parameters.get("weight")
    return weight is not None and weight.to_local().shape[0] * group.size() == weight.shape[0]


def _look_up_own(part: TokenEmbedding, group: ProcessGroup, tokens: Tensor) -> Tensor:
    """[B, T] -> [B, T, D]: each process has the vectors of its own tokens and zeros for others; their sum is all."""
    weight: Any = part._parameters["weight"]
    rows = local_tensor(weight, "own", group)
    places = tokens - group.rank() * len(rows)
    here = (places >= 0) & (places < len(rows))
    found = F.embedding(places.clamp(0, len(rows) - 1), rows)
    return sum_shares(found.masked_fill(~here[..., None], 0.0), group)


class SharedLoss:
    """- sum log p(label) of a head; `owner` is the module that has W, the head's own map or the embedding."""

    def __init__(self, head: LanguageHead | TiedHead, owner: nn.Module, group: ProcessGroup) -> None:
        self.owner, self.group = owner, group
        self.scale = head.scale if isinstance(head, TiedHead) else 1.0
        self.bias_owner = head if isinstance(head, TiedHead) else head.linear

    def __call__(self, hidden: Tensor, labels: Tensor, smoothing: float) -> Tensor:
        """Some rows of hidden [N, D] at a time, where their logits are many."""
        W = self._rows(self.owner, "weight")
        assert W is not None
        b = self._rows(self.bias_owner, "bias")
        hidden = sum_gradients(hidden * self.scale if self.scale != 1.0 else hidden, self.group)
        rows = max(1, LOGITS_AT_ONCE // len(W))
        if len(labels) <= rows:
            return self._part(hidden, W, b, labels, smoothing)
        pairs = zip(hidden.split(rows), labels.split(rows), strict=True)
        parts = [checkpoint(self._part, some, W, b, own, smoothing, use_reentrant=False) for some, own in pairs]
        return torch.stack(parts).sum()

    def _rows(self, owner: nn.Module, name: str) -> Tensor | None:
        """This process's rows of W or b; a bias that is whole on every process is cut."""
        weight: Any = owner._parameters.get(name)
        if weight is None:
            return None
        if weight.to_local().shape[0] < weight.shape[0]:
            return local_tensor(weight, "own", self.group)
        return local_tensor(weight, "partial", self.group).chunk(self.group.size())[self.group.rank()]

    def _part(self, hidden: Tensor, W: Tensor, b: Tensor | None, labels: Tensor, smoothing: float) -> Tensor:
        logits = widen(F.linear(hidden, W.to(hidden.dtype), b))
        highest = logits.detach().amax(-1)
        dist.all_reduce(highest, dist.ReduceOp.MAX, group=self.group)
        total = sum_shares((logits - highest[:, None]).exp().sum(-1), self.group)
        first = self.group.rank() * len(W)
        here = (labels >= first) & (labels < first + len(W))
        own = logits.gather(-1, (labels - first).clamp(0, len(W) - 1)[:, None])[:, 0]
        at_label = sum_shares(torch.where(here, own, 0.0), self.group)
        lost = total.log() + highest - at_label
        if smoothing:
            mean = sum_shares(logits.sum(-1), self.group) / (len(W) * self.group.size())
            lost = lost + smoothing * (at_label - mean)
        return lost.sum()
