"""Memory of one device in training: weights, gradients, optimizer state and activations under a layout."""

from __future__ import annotations

from dataclasses import dataclass

from weft.models.cluster.device_table import PrecisionName
from weft.models.cluster.layouts import Layout, Pieces
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
    """Bytes on one device, each part at its most; the float32 copy of the weights counts as optimizer state.

    Not all parts are there at once. `early_gradients` are those that exist before the backward pass: all where
    gradients are accumulated or summed over devices, else none, and they come as activations go. `update` is what the
    end of the step takes beside gradients, when activations are gone: the other gradients of tied weights. The
    optimizer takes nothing: its one kernel (fused AdamW) has no temporaries.
    """

    weights: int
    gradients: int
    optimizer: int
    activations: int
    early_gradients: int = 0
    update: int = 0

    @property
    def total(self) -> int:
        """At the fullest moment: where the backward pass begins, or where the weights are updated."""
        fullest = max(self.early_gradients + self.activations, self.gradients + self.update)
        return self.weights + self.optimizer + fullest


def state_memory(parameters: int, sizes: NumberSizes, shards: int = 1) -> tuple[int, int, int]:
    """(weights, gradients, optimizer) in bytes with Adam, each a 1 / `shards` (Rajbhandari et al. 2020)."""
    share = -(-parameters // shards)
    return sizes.number * share, sizes.number * share, sizes.optimizer * share


def device_memory(
    profile: TrainingProfile,
    layout: Layout,
    sizes: NumberSizes,
    pieces: Pieces,
    recompute: bool,
) -> DeviceMemory:
    """Memory of one device for one micro-batch at a time.

    fsdp also holds what is gathered: weights outside of blocks and of two blocks (one runs, the next one is gathered),
    and gradients outside of blocks and of one block. What the loss takes counts as activations. Slopes inside the block
    that the backward pass has reached are left out: 0 to 5 % of what `weft bench memory` measures.
    """
    parameters, number, shards = profile.model.parameters, sizes.number, layout.fsdp * layout.tp
    weights, gradients, optimizer = state_memory(parameters, sizes, shards)
    if layout.fsdp > 1:
        gathered = min(parameters, profile.outside + 2 * profile.largest_block)
        weights += number * gathered // layout.tp
        gradients += number * min(parameters, profile.outside + profile.largest_block) // layout.tp
    activations = profile.micro_batch_bytes(pieces.micro_batch, number, recompute, layout.tp)
    summed = pieces.micro_steps > 1 or layout.data_ranks > 1
    after = profile.output.more_gradient_bytes(number) // layout.tp
    return DeviceMemory(weights, gradients, optimizer, activations, gradients if summed else 0, after)
