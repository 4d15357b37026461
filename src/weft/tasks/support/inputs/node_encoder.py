"""The nodes of graphs as tokens: each sees its neighbors alone (the graph is the mask), and each has an answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from weft.data.batching import batches_by_length
from weft.data.readers.files import DataError
from weft.data.readers.graphs import LabeledGraph, parse_graph, read_graphs
from weft.foundation.spec import Tree
from weft.models.encoder import EncoderSpec, PerTokenSpec, TokensSpec
from weft.models.part_specs import AttentionSpec, InitializationSpec
from weft.models.position_specs import NoPositionsSpec
from weft.models.teacher_forcing import IGNORED
from weft.tasks.support.inputs.input_encoders import InputEncoder
from weft.tasks.support.splits.sentences import Hiding, Numbers, probabilities
from weft.tasks.task import Answer, Batch, GenerationOptions, Recipe, Size, Split

UNKNOWN_NODE = "<unknown>"
LARGEST_GRAPH = 1024


@dataclass(frozen=True)
class Nodes(Split):
    """Graphs: numbers of their nodes' names, who neighbors whom, a label per node."""

    rows: tuple[Numbers, ...]
    edges: tuple[NDArray[np.bool_], ...]
    labels: tuple[Numbers, ...]

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def tokens(self) -> int:
        """Nodes of all graphs."""
        return sum(map(len, self.rows))

    def example_lengths(self) -> tuple[str, Sequence[int]]:
        return "nodes", [len(row) for row in self.rows]

    def class_numbers(self) -> Numbers:
        return np.concatenate(self.labels)

    def cut(self, length: int) -> Nodes:
        """Only graphs of up to `length` nodes: part of a graph is another graph."""
        kept = [number for number, row in enumerate(self.rows) if len(row) <= length]
        if not kept:
            least = min(map(len, self.rows))
            raise DataError(f"the smallest graph has {least} nodes, but the model takes {length}: --set length={least}")
        return self if len(kept) == len(self) else self.pick(kept)

    def pick(self, numbers: Sequence[int]) -> Nodes:
        rows, edges, labels = (tuple(field[n] for n in numbers) for field in (self.rows, self.edges, self.labels))
        return Nodes(cast(Any, rows), cast(Any, edges), cast(Any, labels))

    def batches(self, size: int, seed: int | None, epoch: int = 0) -> Sequence[Sequence[int]]:
        """Graphs of like size together."""
        sizes = [len(row) for row in self.rows]
        return batches_by_length(sizes, max(size, *sizes, 1), 0 if seed is None else seed, epoch)

    def batch(self, examples: Sequence[int], seed: int | None = None, epoch: int = 0) -> Batch:
        """Nodes [B, N] with padding, edges [B, N, N], labels [B, N]."""
        lengths = [len(self.rows[number]) for number in examples]
        B, N = len(lengths), max(lengths)
        tokens, labels = np.zeros((B, N), dtype=np.int64), np.full((B, N), IGNORED, dtype=np.int64)
        edges = np.zeros((B, N, N), dtype=np.bool_)
        for row, (number, n) in enumerate(zip(examples, lengths, strict=True)):
            tokens[row, :n], labels[row, :n] = self.rows[number], self.labels[number]
            edges[row, :n, :n] = self.edges[number]
        real = torch.arange(N) < torch.tensor(lengths)[:, None]
        inputs = {"tokens": torch.from_numpy(tokens), "mask": real, "edges": torch.from_numpy(edges)}
        return Batch(inputs, torch.from_numpy(labels), sum(lengths), tokens.size)


@dataclass(frozen=True)
class NodeEncoder(InputEncoder):
    """Names of nodes, numbered; a name that training never saw is the unknown one."""

    names: tuple[str, ...]
    kind: ClassVar[str] = "nodes"

    @classmethod
    def learn(cls, graphs: Sequence[LabeledGraph]) -> NodeEncoder:
        """All names of nodes, in order."""
        return cls(tuple(sorted({name for graph in graphs for name in graph.nodes})))

    def facts(self) -> Tree:
        return {"names": list(self.names)}

    def make_split(
        self, inputs: Sequence[LabeledGraph], labels: Sequence[Numbers], hiding: Hiding | None = None
    ) -> Nodes:
        """Nothing is hidden: neighbors are few."""
        numbers = {name: number for number, name in enumerate(self.names, 1)}
        rows = [np.array([numbers.get(name, 0) for name in graph.nodes], dtype=np.int64) for graph in inputs]
        return Nodes(tuple(rows), tuple(graph.adjacency for graph in inputs), tuple(labels))

    def fit_spec(self, spec: EncoderSpec, classes: int) -> EncoderSpec:
        """Nodes in, one answer per node out; a class token would have no edge, and nodes have no order."""
        tokens = TokensSpec(vocabulary=len(self.names) + 1)
        answer = PerTokenSpec(classes=classes)
        return spec.replace(input=tokens, output=answer, class_token=False, positions=NoPositionsSpec())

    def model(self, size: Size) -> EncoderSpec:
        """Attention along the edges; nodes have no order, so no positions."""
        return EncoderSpec(
            width=size.width,
            layers=size.layers,
            length=size.context,
            mixer=AttentionSpec(heads=size.heads),
            positions=NoPositionsSpec(),
            dropout=size.dropout,
            initialization=InitializationSpec(scheme="fan-in", zero_residual=True, embedding=1.0),
        )

    def sizes(self, train: Split) -> Sequence[Size]:
        """Few layers: each sees one edge farther."""
        return Size(32, 2, LARGEST_GRAPH), Size(64, 2, LARGEST_GRAPH), Size(128, 3, LARGEST_GRAPH)

    def recipe(self, size: Size, epochs: float) -> Recipe:
        return Recipe(dropout=0.0 if epochs < 10 else 0.1, training={"weight_decay": 0.01}, most_epochs=30)

    def answer(
        self,
        module: nn.Module,
        inputs: Sequence[Any],
        classes: Sequence[str],
        generation: GenerationOptions,
        temperature: float = 1.0,
    ) -> list[Answer]:
        """For each graph, from a .json file or as a tree, a label per node."""
        graphs: list[LabeledGraph] = []
        names: list[Any] = []
        for number, given in enumerate(inputs, 1):
            if isinstance(given, Mapping):
                graphs.append(parse_graph(dict(given), f"graph {number}", labeled=False))
                names.append(given)
                continue
            found = read_graphs([Path(str(given))], labeled=False)
            graphs += found
            names += [str(given)] * len(found)
        split = self.make_split(graphs, [np.zeros(len(graph.nodes), dtype=np.int64) for graph in graphs])
        answers = []
        by_graph = self._shares(module, split, generation.batch, temperature)
        for name, graph, shares in zip(names, graphs, by_graph, strict=True):
            said = [classes[number] for number in shares.argmax(-1).tolist()]
            rows = [dict(zip(classes, [round(p, 6) for p in row], strict=True)) for row in shares.tolist()]
            answers.append(Answer(name, said, {"tokens": list(graph.nodes), "probabilities": rows}))
        return answers

    def _shares(self, module: nn.Module, split: Nodes, rows: int, temperature: float) -> list[torch.Tensor]:
        most: int = module.spec.length  # type: ignore[assignment, union-attr]
        largest = max(map(len, split.rows))
        if largest > most:
            raise DataError(
                f"a graph of {largest} nodes, but the model takes {most}: train with --set length={largest}"
            )
        return probabilities(module, split, rows * largest, temperature)

    def preview(self, module: nn.Module, split: Split, classes: Sequence[str]) -> str:
        """The first held-out graph: what is true of its nodes and what the model says."""
        assert isinstance(split, Nodes)
        (shares,) = probabilities(module, split.pick([0]), 1)
        pairs = zip(split.labels[0].tolist(), shares.argmax(-1).tolist(), strict=True)
        return "nodes, true/said: " + " ".join(f"{classes[truth]}/{classes[said]}" for truth, said in pairs)
