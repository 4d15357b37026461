"""The tree of a model's parts with shapes and parameters; blocks that are alike stand there once, with their number."""

from __future__ import annotations

from dataclasses import replace

from torch import nn

from weft.models.estimate_types import PartNode
from weft.parts.experts import Experts

# The first step of a parameter's path that is named here says what the parameter is for.
ROLES: dict[str, str] = {
    "embedding": "embedding",
    "source_embedding": "embedding",
    "target_embedding": "embedding",
    "patches": "embedding",
    "segments": "embedding",
    "class_token": "embedding",
    "registers": "embedding",
    "position": "positions",
    "grid": "positions",
    "mixer": "mixer",
    "cross": "cross-attention",
    "feedforward": "feed-forward",
    "mixer_norm": "norms",
    "cross_norm": "norms",
    "feedforward_norm": "norms",
    "mixer_output_norm": "norms",
    "cross_output_norm": "norms",
    "feedforward_output_norm": "norms",
    "norm": "norms",
    "input_norm": "norms",
    "score": "attention",
    "net": "recurrence",
    "first": "recurrence",
    "combine": "output",
    "head": "output",
    "image_head": "output",
    "text_head": "output",
    "similarity": "output",
}


def part_tree(module: nn.Module, name: str = "model") -> PartNode:
    """The tree of this module; torch's own layers without parameters (dropout) are left out."""
    own = dict(module.named_parameters(recurse=False))
    children: list[PartNode] = []
    for child_name, child in module.named_children():
        if isinstance(child, nn.ModuleList):
            children += _alike(child_name, child)
        elif _counts(child):
            children.append(part_tree(child, child_name))
    return PartNode(
        name,
        type(module).__name__,
        ", ".join(" x ".join(map(str, p.shape)) for p in own.values()),
        sum(p.numel() for p in own.values()) + sum(child.total for child in children),
        children=tuple(children),
    )


def _counts(module: nn.Module) -> bool:
    return not type(module).__module__.startswith("torch.") or any(True for _ in module.parameters())


def _alike(name: str, modules: nn.ModuleList) -> list[PartNode]:
    """One part for each kind of module in the list, with the number of its copies."""
    groups: dict[PartNode, list[int]] = {}
    for index, module in enumerate(modules):
        groups.setdefault(part_tree(module, name), []).append(index)
    if len(groups) == 1:
        return [replace(part, copies=len(found)) for part, found in groups.items()]
    return [
        replace(part, name=f"{name} {', '.join(map(str, found))}", copies=len(found)) for part, found in groups.items()
    ]


def parameters_by_role(module: nn.Module) -> dict[str, int]:
    """Parameters by what they are for: embedding, positions, mixer, feed-forward, norms, output ...; sums to all."""
    roles: dict[str, int] = {}
    for path, parameter in module.named_parameters():
        role = next((ROLES[step] for step in path.split(".") if step in ROLES), "other")
        roles[role] = roles.get(role, 0) + parameter.numel()
    return roles


def active_parameters(module: nn.Module) -> int:
    """Parameters that one token uses: of E experts only the A active ones, all else whole."""
    idle = 0
    for part in module.modules():
        if isinstance(part, Experts):
            idle += (part.up.numel() + part.down.numel()) // part.experts * (part.experts - part.active)
    return sum(p.numel() for p in module.parameters()) - idle
