"""Layouts: how devices share the work of a training.

- dp: data parallelism; every device has all weights, gradients are summed by an all-reduce.
- fsdp: fully sharded data parallelism (ZeRO stage 3, Rajbhandari et al. 2020); weights, gradients and optimizer state
  are sharded, and the weights of a block are gathered when it runs.
- tp: tensor parallelism of heads and hidden widths (Shoeybi et al. 2019) with sequence parallelism between (Korthikanti
  et al. 2022), inside a node only (Narayanan et al. 2021, takeaway 1).

Products of the three are meshes: tp is the innermost axis, dp the outermost. Pipeline parallelism is not offered.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from weft.models.cluster.device_table import Cluster


@dataclass(frozen=True)
class Layout:
    """dp x fsdp x tp devices."""

    dp: int
    fsdp: int
    tp: int

    @property
    def data_ranks(self) -> int:
        """How many ways the batch is split."""
        return self.dp * self.fsdp

    @property
    def words(self) -> str:
        """As a mesh: `dp=4, fsdp=8, tp=2`; axes of 1 are left out."""
        return ", ".join(f"{axis}={getattr(self, axis)}" for axis in self.axes) or "one device"

    @property
    def axes(self) -> tuple[str, ...]:
        """Names of the axes of more than one device."""
        return tuple(axis for axis in ("dp", "fsdp", "tp") if getattr(self, axis) > 1)

    @property
    def complexity(self) -> tuple[int, int, int]:
        """Smaller is simpler: fewer axes, then less tp, then less fsdp."""
        return len(self.axes), self.tp, self.fsdp


@dataclass(frozen=True)
class Pieces:
    """What one data rank does in a step: `sequences` of the batch, `micro_batch` of them at a time."""

    sequences: int
    micro_batch: int

    @property
    def micro_steps(self) -> int:
        """How many micro-batches make the step."""
        return -(-self.sequences // self.micro_batch)


def layouts(cluster: Cluster, splits: int) -> Iterator[Layout]:
    """All meshes of these devices: tp divides `splits`, what the model can be split by, and fits in a node."""
    node = cluster.device.devices_per_node
    for tp in _divisors(cluster.count):
        fits = tp <= node and (node % tp == 0 or cluster.count <= node)
        if not fits or splits % tp:
            continue
        for fsdp in _divisors(cluster.count // tp):
            yield Layout(cluster.count // tp // fsdp, fsdp, tp)


def _divisors(number: int) -> list[int]:
    low = [n for n in range(1, int(number**0.5) + 1) if number % n == 0]
    return sorted({*low, *(number // n for n in low)})
