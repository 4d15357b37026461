"""Failures: how often to write a checkpoint, and the share of the time that checkpoints and failures take."""

from __future__ import annotations

import math
from dataclasses import dataclass

from weft.foundation.errors import WeftError
from weft.models.cluster.device_table import GB, Cluster

CHECKPOINT_BYTES = 12  # per parameter: weights and the two moments of Adam in float32
RESTART_SECONDS = 600.0  # from a failure until training goes on; an assumption


def young_interval(checkpoint: float, mtbf: float) -> float:
    """sqrt(2 C M): the time between checkpoints that loses least; C writes one, M is between failures (Young 1974)."""
    return math.sqrt(2 * checkpoint * mtbf)


@dataclass(frozen=True)
class Failures:
    """Seconds, of all devices together; `lost` is the share of the time that checkpoints and failures take."""

    mtbf: float
    checkpoint: float
    interval: float
    lost: float


def failures(parameters: int, cluster: Cluster) -> Failures:
    """What failures cost: writing every interval t, and per failure half an interval again and a restart.

    lost = C / t + (t / 2 + R) / M, smallest at Young's t.
    """
    mtbf = cluster.device.mtbf_hours * 3600 / cluster.count
    checkpoint = CHECKPOINT_BYTES * parameters / (cluster.device.storage_gb_per_second * GB * cluster.count)
    interval = young_interval(checkpoint, mtbf)
    lost = checkpoint / interval + (interval / 2 + RESTART_SECONDS) / mtbf
    if lost >= 1:
        raise WeftError(
            f"{cluster.words} fail every {mtbf:,.0f} s on average (mtbf_hours {cluster.device.mtbf_hours:g} per "
            f"device), which leaves no time to train: use fewer or more reliable devices"
        )
    return Failures(mtbf, checkpoint, interval, lost)
