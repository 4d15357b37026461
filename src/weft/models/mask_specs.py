"""Specs of masks: what the attention of a layer may see within what its model may see; each builds its own mask."""

from __future__ import annotations

from typing import Annotated, Literal, Self

import torch
from pydantic import Field, NonNegativeInt, PositiveInt, model_validator

from weft.foundation.spec import Spec
from weft.parts.masks import BlockSparse, Causal, Dilated, Graph, Mask, Prefix, Window, both, strided


class _LayerMaskSpec(Spec):
    """What specs of masks share: unless they say otherwise, they narrow what the model may see."""

    def build(self) -> Mask:
        raise NotImplementedError

    def within(self, seen: Mask) -> Mask:
        """What a layer sees in a model that may see `seen`."""
        return seen & self.build()

    def longest(self) -> int | None:
        """The longest sequence that it speaks of, if there is one."""
        return None


class PrefixMaskSpec(_LayerMaskSpec):
    """A prefix language model (Raffel et al. 2020): the first `length` tokens see each other in both directions."""

    kind: Literal["prefix"] = "prefix"
    length: PositiveInt = 8

    def build(self) -> Mask:
        return Prefix(self.length)

    def within(self, seen: Mask) -> Mask:
        """The prefix in place of causality."""
        return both(self.build() if term == Causal() else term for term in seen.terms())


class WindowMaskSpec(_LayerMaskSpec):
    """The keys nearer than `width`: the same as mixer.window."""

    kind: Literal["window"] = "window"
    width: PositiveInt = 64

    def build(self) -> Mask:
        return Window(self.width)


class DilatedMaskSpec(_LayerMaskSpec):
    """Every `step`-th key, counted from the query; with mixer.window a dilated window (Beltagy et al. 2020)."""

    kind: Literal["dilated"] = "dilated"
    step: PositiveInt = 2

    def build(self) -> Mask:
        return Dilated(self.step)


class StridedMaskSpec(_LayerMaskSpec):
    """The last `step` keys and every step-th before them (Child et al. 2019)."""

    kind: Literal["strided"] = "strided"
    step: PositiveInt = 8

    def build(self) -> Mask:
        return strided(self.step)


class BlockSparseMaskSpec(_LayerMaskSpec):
    """Blocks of `size` tokens that see `near` blocks to either side; the first `shared` ones see all and are seen."""

    kind: Literal["block-sparse"] = "block-sparse"
    size: PositiveInt = 16
    near: NonNegativeInt = 1
    shared: NonNegativeInt = 0

    def build(self) -> Mask:
        return BlockSparse(self.size, self.near, self.shared)


class GraphMaskSpec(_LayerMaskSpec):
    """A graph of `nodes`, one per token: tokens see each other along `edges`, pairs of numbers from 0, both ways.

    The edges themselves are kept here; the option mixer.mask.file of a training reads them from a file.
    """

    kind: Literal["graph"] = "graph"
    nodes: PositiveInt | None = None
    edges: tuple[tuple[NonNegativeInt, NonNegativeInt], ...] = ()

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if not self.edges:
            raise ValueError("a graph needs edges: --set mixer.mask.file=edges.csv, or a list of pairs of nodes")
        last = max(max(edge) for edge in self.edges)
        if self.nodes is not None and last >= self.nodes:
            raise ValueError(f"an edge ends at node {last}, but nodes are numbered 0 to {self.nodes - 1}: correct one")
        return self

    def longest(self) -> int:
        """One token per node."""
        return self.nodes or 1 + max(max(edge) for edge in self.edges)

    def build(self) -> Mask:
        """The adjacency matrix, which is symmetric."""
        ends = torch.tensor(self.edges, device="cpu").T
        adjacency = torch.zeros(self.longest(), self.longest(), dtype=torch.bool, device="cpu")
        adjacency[ends[0], ends[1]] = adjacency[ends[1], ends[0]] = True
        return Graph(adjacency)


MaskSpec = Annotated[
    PrefixMaskSpec | WindowMaskSpec | DilatedMaskSpec | StridedMaskSpec | BlockSparseMaskSpec | GraphMaskSpec,
    Field(discriminator="kind"),
]
