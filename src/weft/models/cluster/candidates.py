"""Candidates: every way to train a model on given devices, with its memory, communication and time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from weft.models.cluster.communication import KINDS, Collective, CollectiveKind, communication
from weft.models.cluster.device_memory import SIZES, DeviceMemory, device_memory
from weft.models.cluster.device_table import GB, Cluster, PrecisionName
from weft.models.cluster.layouts import Layout, Pieces, layouts
from weft.models.cluster.step_time import StepTime, step_time
from weft.models.cluster.training_profile import TrainingProfile

# Share of the peak FLOP/s that a device reaches while it computes. 140 of 312 TFLOP/s were reached with 175B parameters
# on 1,024 A100 (Narayanan et al. 2021, section 5.1), 0.45; the hours of Llama 2 7B (Touvron et al. 2023) come to 0.45.
EFFICIENCY = 0.45
USABLE = 0.9  # share of a device's memory that training may take; the rest is for the driver and fragments
MOST_SEQUENCES = 256  # in a micro-batch


@dataclass(frozen=True)
class Request:
    """What is planned: `batch` and `tokens` count tokens, in all devices; `efficiency` is a share of peak FLOP/s."""

    cluster: Cluster
    precision: PrecisionName
    batch: int
    tokens: int
    efficiency: float = EFFICIENCY


@dataclass(frozen=True)
class Candidate:
    """One way to train: a layout, sequences per micro-batch, recomputation or not, and what it costs."""

    layout: Layout
    pieces: Pieces
    recompute: bool
    memory: DeviceMemory
    collectives: tuple[Collective, ...]
    time: StepTime

    @property
    def sent(self) -> dict[CollectiveKind, int]:
        """Bytes that one device sends per step, by kind of collective."""
        return {kind: sum(c.bytes for c in self.collectives if c.kind == kind) for kind in KINDS}

    @property
    def payload(self) -> dict[CollectiveKind, int]:
        """Bytes that are reduced or gathered per step, by kind of collective: see `Collective`."""
        return {kind: sum(c.payload for c in self.collectives if c.kind == kind) for kind in KINDS}


def candidates(profile: TrainingProfile, request: Request, sequences: int) -> Iterator[Candidate]:
    """Every layout with every micro-batch, with and without recomputation, whether it fits or not."""
    cluster, sizes = request.cluster, SIZES[request.precision]
    speed = request.efficiency * cluster.device.flops(request.precision)
    for layout in layouts(cluster, profile.splits):
        share = -(-sequences // layout.data_ranks)
        if layout.data_ranks > sequences:
            continue
        for micro_batch in (n for n in range(1, min(share, MOST_SEQUENCES) + 1) if share % n == 0):
            pieces = Pieces(share, micro_batch)
            for recompute in (False, True):
                memory = device_memory(profile, layout, sizes, pieces, recompute)
                sent = communication(profile, layout, sizes, cluster, pieces, recompute)
                time = step_time(profile, layout, pieces, sent, cluster, speed, recompute)
                yield Candidate(layout, pieces, recompute, memory, sent, time)


def usable_memory(cluster: Cluster) -> int:
    """Bytes of one device that training may take."""
    return int(USABLE * cluster.device.memory_gb * GB)


def ranked(costed: Iterable[Candidate], cluster: Cluster) -> list[Candidate]:
    """The fastest candidate of each layout that fits, fastest first.

    Of equally fast ones that of fewer micro-batches, whose products are larger, then that of less memory.
    """
    fastest: dict[Layout, Candidate] = {}
    usable = usable_memory(cluster)
    for candidate in costed:
        if candidate.memory.total <= usable:
            known = fastest.setdefault(candidate.layout, candidate)
            if _order(candidate) < _order(known):
                fastest[candidate.layout] = candidate
    return sorted(fastest.values(), key=_order)


def _order(candidate: Candidate) -> tuple[float, int, int]:
    return candidate.time.total, candidate.pieces.micro_steps, candidate.memory.total
