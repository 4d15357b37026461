"""Memory of one device in training: weights, gradients, optimizer state and activations under a layout."""

from __future__ import annotations

from dataclasses import dataclass

from weft.models.cluster.device_table import PrecisionName
from weft.models.cluster.layouts import Layout
from weft.models.cluster.training_profile import TrainingProfile


@dataclass(frozen=True)
class NumberSizes:
    """Bytes per weight, gradient, activation and communicated number (`number`), and of optimizer state per weight."""

    number: int
    optimizer: int


# Mixed precision keeps a copy of the weights in float32 beside the two moments of Adam: 2 + 2 + 12 = 16 bytes per
# parameter (Rajbhandari et al. 2020, section 3.1); float32 has no copy: 4 + 4 + 8 = 16.
SIZES: dict[PrecisionName, NumberSizes] = {
    "bf16": NumberSizes(2, 12),
    "fp16": NumberSizes(2, 12),
    "tf32": NumberSizes(4, 8),
    "fp32": NumberSizes(4, 8),
}


@dataclass(frozen=True)
class DeviceMemory:
    """Bytes on one device; the float32 copy of the weights counts as optimizer state."""

    weights: int
    gradients: int
    optimizer: int
    activations: int

    @property
    def total(self) -> int:
        return self.weights + self.gradients + self.optimizer + self.activations


def state_memory(parameters: int, sizes: NumberSizes, shards: int = 1) -> tuple[int, int, int]:
    """(weights, gradients, optimizer) in bytes with Adam, each a 1 / `shards` (Rajbhandari et al. 2020)."""
    share = -(-parameters // shards)
    return sizes.number * share, sizes.number * share, sizes.optimizer * share


def device_memory(
    profile: TrainingProfile, layout: Layout, sizes: NumberSizes, micro_batch: int, recompute: bool
) -> DeviceMemory:
    """Memory of one device for `micro_batch` sequences at a time.

    fsdp also holds what is gathered: weights outside of blocks and of two blocks (one runs, the next one is gathered),
    and gradients outside of blocks and of one block. tp divides all activations (Korthikanti et al. 2022, equation 4).
    """
    parameters = profile.model.parameters
    weights, gradients, optimizer = state_memory(parameters, sizes, layout.fsdp * layout.tp)
    if layout.fsdp > 1:
        gathered = min(parameters, profile.outside + 2 * profile.largest_block)
        weights += sizes.number * gathered // layout.tp
        gradients += sizes.number * min(parameters, profile.outside + profile.largest_block) // layout.tp
    activations = micro_batch * profile.activation_bytes(sizes.number, recompute) // layout.tp
    return DeviceMemory(weights, gradients, optimizer, activations)
