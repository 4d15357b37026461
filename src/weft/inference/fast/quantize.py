"""Quantization: the same model with matrices in blocks of 8 or 4 bits, so less memory to read at each step.

    int8   blocks of Q8_0: 32 weights share a scale; 8.5 bits per weight
    int4   blocks of Q4_1: 32 weights share a scale and a least value; 5 bits per weight. The head over the vocabulary,
           whose errors reach the logits directly, and the matrices whose products are added to the residual stream
           (attention's output, the feed-forward's `down`) are in Q8_0. In language models later columns make up for the
           errors of earlier ones, for the inputs of texts that the model generates itself

A row's result depends on that row alone, not on the rest of the batch.
"""

from __future__ import annotations

from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from weft.foundation.errors import WeftError
from weft.inference.fast.calibration import linear_layers, own_texts, round_in_turn
from weft.models.decoder import Decoder
from weft.parts.block_formats import quantize_blocks
from weft.parts.linear import ResidualLinear
from weft.parts.outputs import CappedHead, LanguageHead, TiedHead
from weft.parts.quantized import BlockQuantizedLinear, BlockSegment, quantize, takes_blocks

WeightKind = Literal["int8", "int4"]
BLOCKS_OF_KIND = {"int8": "Q8_0", "int4": "Q4_1"}
HEAD_BLOCKS = RESIDUAL_BLOCKS = "Q8_0"  # of any kind


def quantize_model(model: nn.Module, kind: WeightKind = "int8") -> nn.Module:
    """Round the matrices of a model in place; a head tied to the embedding gets a matrix of its own."""
    if kind not in get_args(WeightKind):
        raise WeftError(f"there are no weights of kind {kind!r}: choose {', '.join(get_args(WeightKind))}")
    tokens = own_texts(model) if kind == "int4" and isinstance(model, Decoder) and linear_layers(model) else None
    holder: Any = model.head if isinstance(getattr(model, "head", None), CappedHead) else model
    head = getattr(holder, "head", None)
    if isinstance(head, TiedHead):
        embedding = getattr(model, "target_embedding", None) or model.embedding
        with torch.device("meta"):
            own = LanguageHead(head.width, head.vocabulary)
        bias = None if head.bias is None else head.bias.detach().clone()
        blocks = quantize_blocks(HEAD_BLOCKS, head.weight(embedding))  # type: ignore[arg-type]
        segment = BlockSegment(HEAD_BLOCKS, head.vocabulary)
        own.linear = BlockQuantizedLinear(blocks, [segment], head.width, bias)  # type: ignore[assignment]
        holder.head = own.train(head.training)
    elif isinstance(head, LanguageHead) and isinstance(head.linear, nn.Linear):
        head.linear = BlockQuantizedLinear.of(head.linear, HEAD_BLOCKS)  # type: ignore[assignment]
    for parent in list(model.modules()):
        for name, part in list(parent.named_children()):
            # A third of the weights, whose errors every layer above reads: in four bits they cost more than they save.
            if isinstance(part, ResidualLinear) and takes_blocks(part):
                setattr(parent, name, BlockQuantizedLinear.of(part, RESIDUAL_BLOCKS))
    if tokens is not None and isinstance(model, Decoder):
        round_in_turn(model, tokens, _four_bits)
    return quantize(model, BLOCKS_OF_KIND[kind])


def _four_bits(linear: nn.Linear, moments: Tensor) -> BlockQuantizedLinear:
    return BlockQuantizedLinear.of(linear, BLOCKS_OF_KIND["int4"], moments)
