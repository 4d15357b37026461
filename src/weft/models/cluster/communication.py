"""Communication of one training step: which collectives a layout needs, and what each device sends in them.

Rings are assumed; what one device sends in a ring does not depend on where it stands. Latency is not counted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from weft.models.cluster.device_memory import NumberSizes
from weft.models.cluster.device_table import Cluster
from weft.models.cluster.layouts import Layout
from weft.models.cluster.training_profile import TrainingProfile

CollectiveKind = Literal["all-reduce", "reduce-scatter", "all-gather"]
Axis = Literal["dp", "fsdp", "tp"]

LINK_EFFICIENCY = 0.8  # share of a link's bandwidth that a ring reaches; an assumption


def all_reduce_bytes(payload: int, devices: int) -> float:
    """What each of n devices sends in a ring all-reduce: 2 (n - 1) / n of the payload (Patarasuk and Yuan 2009)."""
    return 2 * (devices - 1) / devices * payload


def reduce_scatter_bytes(payload: int, devices: int) -> float:
    """Half of an all-reduce: (n - 1) / n of the payload, which is all that is reduced."""
    return (devices - 1) / devices * payload


def all_gather_bytes(payload: int, devices: int) -> float:
    """The other half: (n - 1) / n of the payload, which is all that is gathered."""
    return (devices - 1) / devices * payload


RING_BYTES = {"all-reduce": all_reduce_bytes, "reduce-scatter": reduce_scatter_bytes, "all-gather": all_gather_bytes}


@dataclass(frozen=True)
class Collective:
    """What one device sends per step in one kind of collective, and over how many devices the ring goes."""

    kind: CollectiveKind
    what: str
    axis: Axis
    devices: int
    bytes: int
    seconds: float


@dataclass(frozen=True)
class Pieces:
    """What one data rank does in a step: `sequences` of the batch, `micro_batch` of them at a time."""

    sequences: int
    micro_batch: int

    @property
    def micro_steps(self) -> int:
        """How many micro-batches make the step."""
        return -(-self.sequences // self.micro_batch)


def communication(
    profile: TrainingProfile, layout: Layout, sizes: NumberSizes, cluster: Cluster, pieces: Pieces, recompute: bool
) -> tuple[Collective, ...]:
    """All collectives of one step.

    dp: one all-reduce of the gradients, after the last micro-batch.
    fsdp: each micro-batch gathers the weights forward and again backward, and reduces and scatters the gradients: 3 x
    the weights (Rajbhandari et al. 2020, section 7.2.2).
    tp: each branch of a block gathers its input and scatters its output, and the reverse backward, where its input is
    gathered once more (Korthikanti et al. 2022, section 4.2.2); recomputation repeats the forward pass. Embedding and
    output together count as one branch.
    """
    weights = sizes.number * profile.model.parameters // layout.tp
    strides = {"tp": 1, "fsdp": layout.tp, "dp": layout.tp * layout.fsdp}
    members = {"tp": layout.tp, "fsdp": layout.fsdp, "dp": layout.dp}
    return tuple(
        Collective(kind, what, axis, members[axis], round(sent), sent / (LINK_EFFICIENCY * link))
        for kind, what, axis, payload in _payloads(profile, layout, sizes, pieces, recompute, weights)
        if members[axis] > 1
        for sent, link in [(RING_BYTES[kind](payload, members[axis]), cluster.link(members[axis], strides[axis]))]
    )


def _payloads(
    profile: TrainingProfile, layout: Layout, sizes: NumberSizes, pieces: Pieces, recompute: bool, weights: int
) -> Iterator[tuple[CollectiveKind, str, Axis, int]]:
    """(kind, what, axis, bytes that are reduced or gathered per step)."""
    yield "all-reduce", "gradients", "dp", weights // layout.fsdp
    yield "reduce-scatter", "gradients", "fsdp", pieces.micro_steps * weights
    yield "all-gather", "weights", "fsdp", 2 * pieces.micro_steps * weights
    inside = pieces.sequences * sizes.number * sum(b.copies * b.branches * b.entering for b in profile.blocks)
    around = pieces.sequences * sizes.number * profile.entering
    again = inside if recompute else 0
    yield "reduce-scatter", "activations", "tp", 2 * (inside + around) + again
    yield "all-gather", "activations", "tp", 3 * (inside + around) + again
