"""Flow: attention as a flow network (Abnar and Zuidema 2020).

Nodes are tokens at each layer; the edge from token i above to token j below has the capacity A~_l[i, j] of rollout.
The flow of row i to input j is the maximum flow from i at the top to j at the bottom. Unlike rollout's products it does
not fade with depth. Each pair is computed by itself (Dinic 1970): for short inputs, or a few rows.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from weft.inspection.analysis.rollout import RESIDUAL, averaged_layers, mixed
from weft.inspection.recording.attention_records import Kind, Rows
from weft.inspection.recording.calls import pick

if TYPE_CHECKING:
    from weft.inspection.recording.watch import Seen

SMALL = 1e-9


def flow(
    seen: Seen,
    batch: int = 0,
    rows: Rows = None,
    residual: float = RESIDUAL,
    kind: Kind | None = None,
    call: int = -1,
) -> Tensor:
    """(rows, T): the maximum flow from each row at the top to each input token."""
    return layered_flow([mixed(map, residual) for map in averaged_layers(seen, batch, kind, call)], rows)


def layered_flow(layers: list[Tensor], rows: Rows = None) -> Tensor:
    """The same for given capacities (T, T) per layer, lowest first."""
    T = layers[0].shape[0]
    network = Network(T * (len(layers) + 1))
    for depth, map in enumerate(layers):
        for i, row in enumerate(map.double().tolist()):
            for j, capacity in enumerate(row):
                if capacity > SMALL:
                    network.connect((depth + 1) * T + i, depth * T + j, capacity)
    top = len(layers) * T
    asked = pick(rows, T).tolist()
    return torch.tensor([[network.most(top + i, j) for j in range(T)] for i in asked], dtype=torch.float64)


class Network:
    """A directed graph with capacities, and its maximum flow from one node to another (Dinic's algorithm)."""

    def __init__(self, nodes: int) -> None:
        self.edges: list[list[int]] = [[] for _ in range(nodes)]
        self.ends: list[int] = []
        self.capacities: list[float] = []

    def connect(self, first: int, second: int, capacity: float) -> None:
        """Add an edge, and its reverse edge of capacity 0."""
        for end, start, room in ((second, first, capacity), (first, second, 0.0)):
            self.edges[start].append(len(self.ends))
            self.ends.append(end)
            self.capacities.append(room)

    def most(self, source: int, sink: int) -> float:
        """The maximum flow from source to sink."""
        room = list(self.capacities)
        total = 0.0
        while (levels := self._levels(source, sink, room)) is not None:
            at = [0] * len(self.edges)
            while (found := self._push(source, sink, float("inf"), levels, at, room)) > SMALL:
                total += found
        return total

    def _levels(self, source: int, sink: int, room: list[float]) -> list[int] | None:
        """Each node's distance along edges with residual capacity; None if the sink cannot be reached."""
        levels = [-1] * len(self.edges)
        levels[source] = 0
        queue = deque([source])
        while queue and levels[sink] < 0:
            node = queue.popleft()
            for edge in self.edges[node]:
                if room[edge] > SMALL and levels[self.ends[edge]] < 0:
                    levels[self.ends[edge]] = levels[node] + 1
                    queue.append(self.ends[edge])
        return levels if levels[sink] >= 0 else None

    def _push(self, node: int, sink: int, most: float, levels: list[int], at: list[int], room: list[float]) -> float:
        """Send up to `most` from a node, one level at a time; returns what reached the sink."""
        if node == sink:
            return most
        while at[node] < len(self.edges[node]):
            edge = self.edges[node][at[node]]
            end = self.ends[edge]
            if room[edge] > SMALL and levels[end] == levels[node] + 1:
                found = self._push(end, sink, min(most, room[edge]), levels, at, room)
                if found > SMALL:
                    room[edge] -= found
                    room[edge ^ 1] += found
                    return found
            at[node] += 1
        return 0.0
