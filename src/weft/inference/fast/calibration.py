"""Calibration: a language model's matrices rounded for the inputs that they meet in texts of the model's own.

No data is asked for: the model goes on from random tokens, by its own probabilities and a fixed seed (Williams et al.
2024). Then it reads these texts once. As each matrix is reached it is rounded, with the moments of the inputs that the
matrices already rounded give it, so later matrices also make up for errors of earlier ones.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from weft.foundation.seeds import generator
from weft.inference.decoding.conditioning import eval_mode
from weft.inference.decoding.generate import generate
from weft.inference.decoding.request import GenerationRequest
from weft.inference.decoding.sampling import Sampling
from weft.models.decoder import Decoder
from weft.parts.quantized import BlockQuantizedLinear, quantize

TEXTS, LENGTH = 16, 128  # together the inputs that moments are taken over

Rounder = Callable[[nn.Linear, Tensor], BlockQuantizedLinear]


def own_texts(model: Decoder, texts: int = TEXTS, length: int = LENGTH) -> Tensor:
    """Tokens [texts, length] that a language model generates, by matrices of 8 bits: faster, and hardly others."""
    length = min(length, model.spec.length)
    first = torch.randint(model.spec.vocabulary, (texts, 1), generator=generator(0))
    if length == 1:
        return first
    request = GenerationRequest(first.tolist(), Sampling(), max_tokens=length - 1)
    written = generate(quantize(_sharing(model), "Q8_0"), request)
    return torch.cat((first, torch.tensor([text.tokens for text in written])), 1)


def _sharing(module: nn.Module) -> nn.Module:
    """The same module of the same weights, whose parts can be replaced."""
    twin = copy.copy(module)
    twin._modules = {name: None if part is None else _sharing(part) for name, part in module._modules.items()}
    return twin


def linear_layers(model: Decoder) -> list[nn.Linear]:
    """Those of the stack, in floating point."""
    return [part for part in model.stack.modules() if isinstance(part, nn.Linear)]


@torch.no_grad()
def round_in_turn(model: Decoder, tokens: Tensor, rounded: Rounder) -> None:
    """Put `rounded(linear, M)` in the place of the linear layers of the stack, in the order in which they are reached;
    M [D, D] are the second moments of what reaches them."""
    found: dict[nn.Module, BlockQuantizedLinear] = {}

    def round_now(linear: nn.Module, given: tuple[Any, ...], _: Tensor) -> Tensor:
        x: Tensor = given[0]
        if linear not in found:
            rows = x.reshape(-1, x.shape[-1]).float()
            found[linear] = rounded(linear, rows.t() @ rows / len(rows)).to(x.device)  # type: ignore[arg-type]
        y: Tensor = found[linear](x)
        return y

    hooks = [part.register_forward_hook(round_now) for part in linear_layers(model)]
    try:
        with eval_mode(model):
            model(tokens.to(model.embedding.device))
    finally:
        for hook in hooks:
            hook.remove()
    for parent in list(model.stack.modules()):
        for name, child in list(parent.named_children()):
            if child in found:
                setattr(parent, name, found[child].train(child.training))
