"""Quantization: the same model with int8 matrices, a quarter of the memory to read at each step.

Only weights are rounded; a row's result depends on that row alone, not on the rest of the batch.
"""

from __future__ import annotations

from typing import Any, Literal, get_args

import torch
from torch import nn

from weft.foundation.errors import WeftError
from weft.parts.outputs import CappedHead, LanguageHead, TiedHead
from weft.parts.quantized import Int8Linear, quantize, quantize_rows

WeightKind = Literal["int8"]


def quantize_model(model: nn.Module, kind: WeightKind = "int8") -> nn.Module:
    """Round the matrices of a model in place; a head tied to the embedding gets an int8 matrix of its own."""
    if kind not in get_args(WeightKind):
        raise WeftError(f"there are no weights of kind {kind!r}: choose {', '.join(get_args(WeightKind))}")
    holder: Any = model.head if isinstance(getattr(model, "head", None), CappedHead) else model
    head = getattr(holder, "head", None)
    if isinstance(head, TiedHead):
        embedding = getattr(model, "target_embedding", None) or model.embedding
        with torch.device("meta"):
            own = LanguageHead(head.width, head.vocabulary)
        bias = None if head.bias is None else head.bias.detach().clone()
        own.linear = Int8Linear(*quantize_rows(head.weight(embedding)), bias)  # type: ignore[assignment, arg-type]
        holder.head = own.train(head.training)
    return quantize(model)
