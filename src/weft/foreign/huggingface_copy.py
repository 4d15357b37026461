"""The float64 copy of a Hugging Face model before it is judged: tables made exact, zero gates opened."""

from __future__ import annotations

import copy

import torch
from torch import nn

from weft.foreign.exact import Exact


def stop_expert_dropout(module: nn.Module) -> list[str]:
    """Dropout inside an expert draws as many numbers as it has tokens, so other tokens' draws would move."""
    found = [
        part
        for name, part in module.named_modules()
        if isinstance(part, nn.Dropout) and "expert" in name and part.p > 0
    ]
    for part in found:
        part.p = 0.0
    return (
        [f"dropout inside experts is left out of {len(found)} places: its draws depend on the routing"] if found else []
    )


def refine_buffers(module: nn.Module) -> None:
    """Tables that were rounded to float32 when the model was made, made again in float64 where they are the same."""
    tables = {
        name: table for name, table in module.named_buffers() if table.is_floating_point() and "inv_freq" not in name
    }
    if not tables:
        return
    try:
        with torch.random.fork_rng(devices=[]), Exact():
            again = dict(type(module)(copy.deepcopy(module.config)).named_buffers())
    except Exception:  # a class that is not made from its config alone keeps its tables
        return
    for name, table in tables.items():
        exact = again.get(name)
        if exact is not None and exact.shape == table.shape and torch.allclose(exact.double(), table, rtol=1e-5):
            table.copy_(exact)


def open_gates(module: nn.Module) -> None:
    """Gates that start at exactly zero would hide whatever they multiply; an empty weight has nothing to learn."""
    with torch.no_grad():
        for name, weight in module.named_parameters():
            if weight.dim() == 1 and weight.numel() and not weight.any() and not name.endswith("bias"):
                weight.copy_(torch.linspace(0.01, 0.02, len(weight)))
            weight.requires_grad_(weight.requires_grad and bool(weight.numel()))
