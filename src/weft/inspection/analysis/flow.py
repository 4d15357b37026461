"""Flow: attention as a network of pipes (Abnar and Zuidema 2020).

Nodes are tokens at each layer, and a pipe from token i above to token j below has the capacity A~_l[i, j] of rollout.
The flow of row i to input j is the most that can run from i at the top to j at the bottom at once. Unlike rollout's
products it does not fade with depth. Each pair is a maximum flow (Dinic 1970): for short inputs, or a few rows.
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
    """The same for maps (T, T) as given, lowest layer first."""
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
    """Pipes between nodes, and the most that runs through them from one node to another (Dinic's algorithm)."""

    def __init__(self, nodes: int) -> None:
        self.pipes: list[list[int]] = [[] for _ in range(nodes)]
        self.ends: list[int] = []
        self.capacities: list[float] = []

    def connect(self, first: int, second: int, capacity: float) -> None:
        """A pipe one way; its other way starts empty and gives back what ran."""
        for end, start, room in ((second, first, capacity), (first, second, 0.0)):
            self.pipes[start].append(len(self.ends))
            self.ends.append(end)
            self.capacities.append(room)

    def most(self, source: int, sink: int) -> float:
        """The maximum flow; the pipes are as empty afterwards as before."""
        room = list(self.capacities)
        total = 0.0
        while (levels := self._levels(source, sink, room)) is not None:
            at = [0] * len(self.pipes)
            while (found := self._push(source, sink, float("inf"), levels, at, room)) > SMALL:
                total += found
        return total

    def _levels(self, source: int, sink: int, room: list[float]) -> list[int] | None:
        """How many pipes away each node is, along pipes with room; None if the sink cannot be reached."""
        levels = [-1] * len(self.pipes)
        levels[source] = 0
        waiting = deque([source])
        while waiting and levels[sink] < 0:
            node = waiting.popleft()
            for pipe in self.pipes[node]:
                if room[pipe] > SMALL and levels[self.ends[pipe]] < 0:
                    levels[self.ends[pipe]] = levels[node] + 1
                    waiting.append(self.ends[pipe])
        return levels if levels[sink] >= 0 else None

    def _push(self, node: int, sink: int, most: float, levels: list[int], at: list[int], room: list[float]) -> float:
        """Send up to `most` from a node on, only ever one level down; what got through."""
        if node == sink:
            return most
        while at[node] < len(self.pipes[node]):
            pipe = self.pipes[node][at[node]]
            end = self.ends[pipe]
            if room[pipe] > SMALL and levels[end] == levels[node] + 1:
                found = self._push(end, sink, min(most, room[pipe]), levels, at, room)
                if found > SMALL:
                    room[pipe] -= found
                    room[pipe ^ 1] += found
                    return found
            at[node] += 1
        return 0.0
