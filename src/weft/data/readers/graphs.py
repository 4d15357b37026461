"""Graphs in files: named nodes, edges as pairs of node numbers from 0, and one label per node to learn from.

    {"nodes": ["red", "blue", "red"], "edges": [[0, 1], [1, 2]], "labels": ["blue", "red", "blue"]}

A .json file holds one graph or a list of them, a .jsonl file one graph per line. Edges are undirected. The edges of one
graph alone may also be the rows of a .csv or .tsv file, two numbers of nodes each.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.data.readers.files import DataError, find_files, name_suffix, read_jsonl, read_table, read_text
from weft.foundation.files.json_text import as_whole_number, parse_json

GRAPH_SUFFIXES = (".json", ".jsonl")
EDGE_SUFFIXES = (".csv", ".tsv")
MOST_NODES = 1 << 15  # a gigabyte of pairs
Edges = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class LabeledGraph:
    """Nodes as tokens, the adjacency matrix [N, N] (the attention mask), and one label per node."""

    nodes: tuple[str, ...]
    adjacency: NDArray[np.bool_]
    labels: tuple[str, ...]


def are_graphs(paths: Sequence[str | Path]) -> bool:
    """Whether these files hold graphs: .json, or .jsonl whose first line has nodes."""
    first = Path(paths[0])
    if not first.is_file():
        return False
    suffix = name_suffix(first)
    return suffix == ".json" or (suffix == ".jsonl" and "nodes" in next(iter(read_jsonl(first)), (0, {}))[1])


def read_graphs(paths: Sequence[str | Path], labeled: bool = True) -> list[LabeledGraph]:
    """All graphs of files; unless `labeled`, labels may be missing."""
    found = [
        parse_graph(tree, where, labeled) for path in find_files(paths, GRAPH_SUFFIXES) for where, tree in _trees(path)
    ]
    if not found:
        raise DataError(f"{Path(paths[0]).name} holds no graph: give one with nodes and edges")
    return found


def read_edges(path: str | Path) -> tuple[int, Edges]:
    """(number of nodes, edges as pairs of nodes) of the one graph in a .csv, .tsv, .json or .jsonl file."""
    (file,) = _one_file(path)
    if name_suffix(file) in EDGE_SUFFIXES:
        edges = _edge_rows(file)
        return 1 + max(max(edge) for edge in edges), edges
    found = read_graphs([file], labeled=False)
    if len(found) > 1:
        raise DataError(f"{file.name} holds {len(found)} graphs: give the one that is the mask in a file of its own")
    edges = tuple((int(a), int(b)) for a, b in np.argwhere(np.triu(found[0].adjacency)))
    if not edges:
        raise DataError(f"{file.name} holds a graph without edges: give some")
    return len(found[0].nodes), edges


def _one_file(path: str | Path) -> list[Path]:
    files = find_files([path], (*EDGE_SUFFIXES, *GRAPH_SUFFIXES))
    if len(files) != 1:
        raise DataError(f"{path} holds {len(files)} files: name the one with the edges")
    return files


def _edge_rows(file: Path) -> Edges:
    """Rows of two numbers each; a first row of names is a header."""
    edges: dict[tuple[int, int], None] = {}
    for place, (number, cells) in enumerate(read_table(file)):
        ends = [cell.strip() for cell in cells[:2]]
        numbers = [as_whole_number(end) for end in ends]
        if len(numbers) == 2 and numbers[0] is not None and numbers[1] is not None:
            _expect_nodes(file.name, max(numbers[0], numbers[1]) + 1)
            edges[numbers[0], numbers[1]] = None
        elif place > 0 or any(end.isdigit() for end in ends):
            raise DataError(
                f"{file.name}, line {number}: {', '.join(cells)[:40]!r} is no edge: give two numbers of nodes, from 0"
            )
    if not edges:
        raise DataError(f"{file.name} holds no edge: give two numbers of nodes per row, from 0")
    return tuple(edges)


def _trees(path: Path) -> Iterator[tuple[str, Any]]:
    if name_suffix(path) == ".jsonl":
        yield from ((f"{path.name}, line {number}", row) for number, row in read_jsonl(path))
        return
    try:
        tree = parse_json(read_text(path))
    except ValueError as error:
        raise DataError(f"{path.name}: not JSON ({error})") from None
    several = tree if isinstance(tree, list) else [tree]
    yield from ((f"{path.name}, graph {number}", one) for number, one in enumerate(several, 1))


def _expect_nodes(where: str, count: int) -> None:
    """Who is joined to whom takes a byte per pair of nodes."""
    if count > MOST_NODES:
        raise DataError(f"{where}: {count:,} nodes, but a graph has at most {MOST_NODES:,}: cut it into parts")


def parse_graph(tree: Any, where: str, labeled: bool = True) -> LabeledGraph:
    """A graph from plain JSON; `where` is its place in the file, for errors."""
    nodes = tree.get("nodes") if isinstance(tree, dict) else None
    if not isinstance(nodes, list) or not nodes or not all(isinstance(name, str | int) for name in nodes):
        raise DataError(f'{where}: a graph has "nodes", a list of names, and "edges", a list of pairs')
    _expect_nodes(where, len(nodes))
    adjacency = np.zeros((len(nodes), len(nodes)), dtype=np.bool_)
    edges = tree.get("edges", [])
    for edge in edges if isinstance(edges, list) else [edges]:
        ends = edge if isinstance(edge, list) else []
        if len(ends) != 2 or not all(isinstance(end, int) and 0 <= end < len(nodes) for end in ends):
            raise DataError(f"{where}: edge {json.dumps(edge)[:40]} is not a pair of nodes from 0 to {len(nodes) - 1}")
        adjacency[ends[0], ends[1]] = adjacency[ends[1], ends[0]] = True
    labels = tree.get("labels")
    if labels is None and not labeled:
        labels = []
    elif not isinstance(labels, list) or len(labels) != len(nodes):
        have = len(labels) if isinstance(labels, list) else "no"
        raise DataError(f'{where}: {len(nodes)} nodes and {have} labels: give "labels", one per node')
    return LabeledGraph(tuple(map(str, nodes)), adjacency, tuple(map(str, labels)))
