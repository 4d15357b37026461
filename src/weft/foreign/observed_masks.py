"""Observed masks: whether the attentions inside a module run with a causal mask, seen while it runs once.

Watched are scaled_dot_product_attention, nn.MultiheadAttention (nn.TransformerEncoder too) and softmaxes over scores: a
flag is_causal, or a mask that hides the later keys, says that the module is meant not to look ahead.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

KERNEL = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
HIDDEN = -1e4  # a score below this is as good as hidden; libraries write -1e4, -1e9 or -inf


class ObservedMasks(TorchFunctionMode):
    """Within it, attentions over one text (as many queries as keys) are counted, and those with a causal mask."""

    def __init__(self) -> None:
        super().__init__()
        self.attentions = 0
        self.causal = 0

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        del types
        kwargs = kwargs or {}
        if func is F.scaled_dot_product_attention:
            given = dict(zip(KERNEL, args, strict=False), **kwargs)
            T, S = given["query"].shape[-2], given["key"].shape[-2]
            self._count(T, S, bool(given.get("is_causal")) or _hides_the_future(given.get("attn_mask"), T))
        elif func is F.multi_head_attention_forward:
            given = dict(zip(("query", "key"), args, strict=False), **kwargs)
            T, S = given["query"].shape[0], given["key"].shape[0]
            self._count(T, S, bool(given.get("is_causal")) or _hides_the_future(given.get("attn_mask"), T, True))
        elif func in (F.softmax, torch.softmax, Tensor.softmax) and args and isinstance(args[0], Tensor):
            scores, dim = args[0], kwargs.get("dim", args[1] if len(args) > 1 else None)
            if scores.dim() >= 2 and dim in (-1, scores.dim() - 1) and scores.shape[-1] == scores.shape[-2]:
                self._count(scores.shape[-2], scores.shape[-1], _hides_the_future(scores, scores.shape[-1]))
        return func(*args, **kwargs)

    def _count(self, T: int, S: int, causal: bool) -> None:
        if T == S > 1:
            self.attentions += 1
            self.causal += causal


def _hides_the_future(mask: Tensor | None, T: int, true_hides: bool = False) -> bool:
    """Whether a mask [..., T, T], boolean or added to scores, hides all later keys and none from its own query."""
    if mask is None or mask.dim() < 2 or mask.shape[-2:] != (T, T):
        return False
    last = mask.reshape(-1, T, T)[-1]
    hidden = (last if true_hides else ~last) if mask.dtype == torch.bool else last <= HIDDEN
    ahead = torch.ones(T, T, dtype=torch.bool, device=hidden.device).triu(1)
    return bool(hidden[ahead].all()) and not bool(hidden.diagonal().any())
