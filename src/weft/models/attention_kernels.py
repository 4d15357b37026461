"""Which kernel each attention of a model runs at a length N, and whether it stores the weights A of all pairs.

Asked of the attentions themselves, for one sequence without padding on this machine's device; nothing is computed.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn

from weft.foundation.numerics import pick_device
from weft.models.estimate_types import KernelUse, Purpose
from weft.parts.attention import CrossAttention, SelfAttention
from weft.parts.attention_context import AttentionContext
from weft.parts.block import Block
from weft.parts.stack import Stack
from weft.parts.token_positions import TokenPositions


def attention_kernels(model: nn.Module, tokens: int) -> tuple[KernelUse, ...]:
    """Those of all layers, each once; in training there may be dropout, and biases learn."""
    before = model.training
    found: dict[KernelUse, None] = {}
    purposes: tuple[Purpose, ...] = ("prediction", "training")
    for purpose in purposes:
        model.train(purpose == "training")
        with torch.set_grad_enabled(purpose == "training"):
            for attention, context in _calls(model, tokens):
                choice = attention.kernel(context)
                found[KernelUse(purpose, choice.kernel, choice.reason, choice.stores_weights)] = None
    model.train(before)
    return tuple(found)


def _calls(model: nn.Module, tokens: int) -> Iterator[tuple[SelfAttention | CrossAttention, AttentionContext]]:
    """Each attention with what it is called with."""
    run = TokenPositions.run(0, tokens, pick_device(None))
    for stack in (part for part in model.modules() if isinstance(part, Stack)):
        for block, mask in zip(stack.blocks, stack.masks, strict=True):
            assert isinstance(block, Block)
            if isinstance(block.mixer, SelfAttention):
                yield block.mixer, AttentionContext(run, mask=mask, position=stack.position)
            if block.cross is not None:
                yield block.cross, AttentionContext(run)
