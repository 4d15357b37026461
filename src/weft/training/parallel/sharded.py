"""Sharded distributions: weights, gradients and moments divided over processes, each weight a DTensor on one mesh.

FSDP2 (`fully_shard`) divides over data ranks, block by block: a block's weights are gathered before it computes, and
its gradients reduced to the process that holds them. Tensor parallelism divides inside of the blocks.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import DataParallelMeshDims, FSDPModule, MixedPrecisionPolicy, fully_shard

from weft.foreign.user_module import UserModule
from weft.foundation.errors import WeftError
from weft.parts.stack import Stack
from weft.tasks.task import Batch, Split, Task
from weft.training.distribution import StepModule
from weft.training.parallel.context_parallel import split_context
from weft.training.parallel.layout import DATA, TENSOR
from weft.training.parallel.local_tensors import whole
from weft.training.parallel.spread import ManyProcesses
from weft.training.parallel.tensor_parallel import split_model
from weft.training.parallel.tensor_splits import split_weights
from weft.training.parallel.vocabulary_loss import share_vocabulary
from weft.training.training_spec import TrainingSpec


class Sharded(ManyProcesses):
    """FSDP2 over data ranks, block by block, and tensor parallelism inside of the blocks; every weight is a DTensor."""

    holds_whole_model = False
    build_device = torch.device("cpu")  # the whole model may not fit on one GPU
    half = False

    def spread(self, task: Task, module: nn.Module, training: TrainingSpec, probe: Callable[[], Batch]) -> nn.Module:
        if isinstance(module, UserModule):
            raise WeftError(f"{self.layout} divides Weft's own parts: train a module of your own with --parallel ddp")
        expect_axes(module)
        splits = split_weights(module, self.layout.tensor)
        self.sections = {name: split.sections for name, split in splits.items() if split.sections}
        reading = None
        if self.layout.tensor > 1:
            reading = split_model(module, self.mesh, splits)
            share_vocabulary(module, self.mesh.get_group(TENSOR))
        elif self.layout.context > 1:
            reading = split_context(module, self.mesh)
        step = StepModule(task, module)
        if self.layout.data == "fsdp" or self.data_ranks > 1:
            self._shard(step, module, training)
            if reading is not None:
                reading.active = False
                step.register_forward_pre_hook(lambda *_: setattr(reading, "active", True))
        for buffer in module.buffers():
            buffer.data = buffer.data.to(self.device)
        self.step = step
        return step

    def _shard(self, step: StepModule, module: nn.Module, training: TrainingSpec) -> None:
        """With tensor parallelism weights are DTensors on the whole mesh already; FSDP shards along its data axis."""
        self.half = training.uses_bf16(self.world.device)
        # Blocks are gathered in bf16 where they compute in it; inputs are cast by autocast, as in one process.
        policy = MixedPrecisionPolicy()
        if self.half:
            policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32, cast_forward_inputs=False)
        how: dict[str, Any] = {"mesh": self.mesh[DATA]}
        if self.layout.together > 1:
            axis = {"shard" if self.layout.data == "fsdp" else "replicate": DATA}
            how |= {"mesh": self.mesh, "dp_mesh_dims": DataParallelMeshDims(**axis)}
        for part in module.modules():
            if isinstance(part, Stack):
                for block in part.blocks:
                    fully_shard(block, mp_policy=policy, **how)
        fully_shard(step, **how)

    @contextlib.contextmanager
    def _synchronized(self, last: bool) -> Iterator[None]:
        if isinstance(self.step, FSDPModule):
            self.step.set_requires_gradient_sync(last)
            self.step.set_is_last_backward(last)
        yield

    def clip(self, weights: Sequence[Tensor], most: float) -> Tensor:
        return whole(super().clip(weights, most))

    def mean_loss(self, step: nn.Module, split: Split, size: int, most: int | None) -> float:
        with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.half):
            found = super().mean_loss(step, split, size, most)
        if isinstance(step, FSDPModule):
            step.reshard()  # the last weights stay gathered for a backward pass, and none follows
        return found


def expect_axes(module: nn.Module) -> None:
    """Refuse weights that are single numbers, which FSDP2 does not shard."""
    name = next((name for name, weight in module.named_parameters() if not weight.dim()), None)
    if name is not None:
        raise WeftError(f"{name} is a single number, which fsdp and tp cannot divide: use --parallel ddp")
