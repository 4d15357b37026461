"""Communication of one training step: which collectives a layout needs, and what each device sends in them.

Rings are assumed; what one device sends in a ring does not depend on where it stands. Latency is not counted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from weft.models.cluster.device_memory import NumberSizes
from weft.models.cluster.device_table import Cluster
from weft.models.cluster.layouts import Layout, Pieces
from weft.models.cluster.training_profile import TrainingProfile, padded_parameters

CollectiveKind = Literal["all-reduce", "reduce-scatter", "all-gather"]
Axis = Literal["dp", "fsdp", "tp"]
KINDS: tuple[CollectiveKind, ...] = ("all-reduce", "reduce-scatter", "all-gather")

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
    """All calls of one kind of collective in one step, for one purpose, over rings of `devices`.

    `payload`: bytes of the whole tensor of a call as one device sees it, added up over the calls: what is reduced (an
    all-reduce, the input of a reduce-scatter) or what has been gathered (the output of an all-gather). It does not
    depend on how the collective is done, so it can be compared with calls that are counted. `bytes` is what one device
    sends for it in a ring.
    """

    kind: CollectiveKind
    what: str
    axis: Axis
    devices: int
    payload: int
    bytes: int
    seconds: float


def communication(
    profile: TrainingProfile, layout: Layout, sizes: NumberSizes, cluster: Cluster, pieces: Pieces, recompute: bool
) -> tuple[Collective, ...]:
    """All collectives of one step.

    dp: one all-reduce of the gradients, after the last micro-batch.
    fsdp: each micro-batch gathers the weights forward and again backward, and reduces and scatters the gradients: 3 x
    the weights (Rajbhandari et al. 2020, section 7.2.2). Weights outside of blocks stay gathered between the two
    passes, because the backward pass begins with them. Rows are filled up to a multiple of the devices.
    tp: each branch of a block gathers its input and scatters its output, and the reverse backward (Korthikanti et al.
    2022, section 4.2.2, who gather the input once more backward instead of keeping it). The output gathers what the
    last block scattered, and backward the input what the first one did. Over a vocabulary that is divided, the vectors
    of tokens are summed, and backward the gradients of the hidden states that logits are made of. Recomputation repeats
    the forward pass of blocks; torch stops it at the last tensor that is kept, which may leave out the last scatter of
    a block.

    Payloads are exact for dp and for fsdp, and for activations of decoders under tp where tp divides the tokens, as
    counted in trainings. Weights under tp are counted as if it divided all of them; sums over tp of what it does not
    divide (gradients of norms) and of a number per token (the parts of the loss) are left out.
    """
    strides = {"tp": 1, "fsdp": layout.tp, "dp": layout.tp * layout.fsdp}
    members = {"tp": layout.tp, "fsdp": layout.fsdp, "dp": layout.dp}
    return tuple(
        Collective(kind, what, axis, members[axis], payload, round(sent), sent / (LINK_EFFICIENCY * link))
        for kind, what, axis, payload in _payloads(profile, layout, sizes, pieces, recompute)
        if members[axis] > 1
        for sent, link in [(RING_BYTES[kind](payload, members[axis]), cluster.link(members[axis], strides[axis]))]
    )


def _payloads(
    profile: TrainingProfile, layout: Layout, sizes: NumberSizes, pieces: Pieces, recompute: bool
) -> Iterator[tuple[CollectiveKind, str, Axis, int]]:
    """(kind, what, axis, bytes that are reduced or gathered per step)."""
    number, shards = sizes.number, layout.fsdp
    outside = number * padded_parameters(profile.outside_shapes, shards) // layout.tp
    blocks = number * sum(b.copies * padded_parameters(b.shapes, shards) for b in profile.blocks) // layout.tp
    yield "all-reduce", "gradients", "dp", (outside + blocks) // shards
    yield "reduce-scatter", "gradients", "fsdp", pieces.micro_steps * (outside + blocks)
    yield "all-gather", "weights", "fsdp", pieces.micro_steps * (outside + 2 * blocks)
    inside = pieces.sequences * number * sum(b.copies * b.branches * b.entering for b in profile.blocks)
    around = pieces.sequences * number * profile.entering
    passes = 3 if recompute else 2
    yield "reduce-scatter", "activations", "tp", passes * inside
    yield "all-gather", "activations", "tp", passes * inside + 2 * around
    yield "all-reduce", "activations", "tp", 2 * around if profile.output.vocabulary else 0
