"""What an estimate is: plain numbers and words, so that stored ones are read without loading torch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Literal

from weft.foundation.matrix_products import MatrixProduct, Products

Purpose = Literal["prediction", "training"]


@dataclass(frozen=True)
class PartNode:
    """One part: `parameters` of a single copy with all that is inside, `shapes` of its own tensors."""

    name: str
    kind: str
    shapes: str
    parameters: int
    copies: int = 1
    children: tuple[PartNode, ...] = ()

    @property
    def total(self) -> int:
        return self.copies * self.parameters

    def walk(self, depth: int = 0) -> Iterator[tuple[int, PartNode]]:
        """(depth, part) for this part and all inside, from the top."""
        yield depth, self
        for child in self.children:
            yield from child.walk(depth + 1)


@dataclass(frozen=True)
class KernelUse:
    """One kernel of a model: what for, its name, why it is chosen, and whether A is in memory as a whole."""

    purpose: Purpose
    kernel: str
    reason: str
    stores_weights: bool


@dataclass(frozen=True)
class Group:
    """Matrix products that run together: of a block, `copies` of which are alike, or of the input or output."""

    where: str
    copies: int
    products: Products

    @property
    def flops(self) -> int:
        """Of all copies."""
        return self.copies * sum(product.flops for product in self.products)


@dataclass(frozen=True)
class KeptMemory:
    """What the state keeps of one sequence while decoding: the count of `numbers` of one kind, over all layers."""

    what: str
    numbers: int


@dataclass(frozen=True)
class MemoryUse:
    """Bytes. `training_adamw`: weights, gradients and two moments in float32. `unfused_attention`: one layer's
    H x N x N weights in 2 bytes if they were stored; `Estimate.kernels` says whether they are."""

    weights_float32: int
    weights_2_bytes: int
    training_adamw: int
    state_float32: int
    state_2_bytes: int
    unfused_attention: int


@dataclass(frozen=True)
class Estimate:
    """What a model costs: `length` is N, `tokens` what the blocks see of it (with class token or image).

    `layers` counts all blocks, `active_parameters` those that one token uses (fewer with experts).
    """

    family: str
    width: int
    heads: int
    layers: int
    length: int
    tokens: int
    parameters: int
    active_parameters: int
    parts: PartNode
    roles: dict[str, int]
    groups: tuple[Group, ...]
    state: tuple[KeptMemory, ...]
    memory: MemoryUse
    kernels: tuple[KernelUse, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def flops_forward(self) -> int:
        """One forward pass over one sequence of N tokens."""
        return sum(group.flops for group in self.groups)

    @property
    def flops_per_token(self) -> int:
        """Forward, for one of the tokens that the blocks see, rounded; of source and target in encoder-decoders."""
        return round(self.flops_forward / self.tokens)

    @property
    def training_flops_per_token(self) -> int:
        """3 x forward."""
        return round(3 * self.flops_forward / self.tokens)

    def to_tree(self) -> dict[str, Any]:
        """Plain dicts, lists and numbers, for JSON."""
        keys = ("family", "width", "heads", "layers", "length", "tokens", "parameters", "active_parameters")
        return {
            **{key: getattr(self, key) for key in keys},
            "parameters_by_part": self.roles,
            "parts": asdict(self.parts),
            "products": [_product_tree(group, product) for group in self.groups for product in group.products],
            "flops": {
                "forward": self.flops_forward,
                "forward_per_token": self.flops_per_token,
                "training_per_token": self.training_flops_per_token,
                "convention": "2 per multiply-add, attention scores at length N, causal not discounted; training 3 x",
            },
            "memory": {**asdict(self.memory), "state_numbers": {kept.what: kept.numbers for kept in self.state}},
            "attention_kernels": [asdict(use) for use in self.kernels],
            "notes": list(self.notes),
        }


def _product_tree(group: Group, product: MatrixProduct) -> dict[str, Any]:
    names = {"where": group.where, "copies": group.copies, "name": product.name, "formula": product.formula}
    return {**names, "shapes": product.shapes, "flops": product.flops}
