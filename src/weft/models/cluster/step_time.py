"""Time of one training step under a layout: computing, waiting for others, and the optimizer."""

from __future__ import annotations

from dataclasses import dataclass

from weft.models.cluster.communication import Collective
from weft.models.cluster.device_table import GB, Cluster
from weft.models.cluster.layouts import Layout, Pieces
from weft.models.cluster.training_profile import TrainingProfile


@dataclass(frozen=True)
class StepTime:
    """Seconds of one step. `waiting` is communication that computation does not hide."""

    computing: float
    waiting: float
    optimizer: float

    @property
    def total(self) -> float:
        return self.computing + self.waiting + self.optimizer


def step_time(
    profile: TrainingProfile,
    layout: Layout,
    pieces: Pieces,
    collectives: tuple[Collective, ...],
    cluster: Cluster,
    speed: float,
    recompute: bool,
) -> StepTime:
    """The step at `speed` FLOP/s of one device while it computes.

    Collectives of tp wait for what is computed and are waited for; gathers and reductions of fsdp run beside the
    computation, so only what is longer than it is waited for; the all-reduce of dp runs beside the backward pass of the
    last micro-batch. Adam reads 14 and writes 14 bytes per parameter in mixed precision (16 and 12 in float32).
    """
    seconds = {axis: sum(c.seconds for c in collectives if c.axis == axis) for axis in ("dp", "fsdp", "tp")}
    flops = profile.computed_flops(recompute)
    computing = pieces.sequences * flops / layout.tp / speed
    backward = computing / pieces.micro_steps * (1 - profile.training_flops / 3 / flops) if flops else 0.0
    hidden_by = computing + seconds["tp"]
    waiting = seconds["tp"] + max(0.0, seconds["fsdp"] - hidden_by) + max(0.0, seconds["dp"] - backward)
    shard = profile.model.parameters / (layout.tp * layout.fsdp)
    touched = 28 * shard / (cluster.device.memory_gb_per_second * GB)
    return StepTime(computing, waiting, touched)
