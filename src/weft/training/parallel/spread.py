"""Distributions of a training over processes: each data rank computes its share of every batch.

`Replicated` keeps the whole model on every process (DDP); `sharded.Sharded` divides it (FSDP2, tensor parallelism).
All give the gradient that one process would have: losses are divided by the answers of all shares, and the sums that
losses of experts are made of run over all of them.
"""

from __future__ import annotations

import contextlib
import functools
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.nn.parallel import DistributedDataParallel

from weft.checkpoints.run_folder import RunFolder, Snapshot
from weft.checkpoints.sharded_files import read_index
from weft.foreign.user_module import UserModule
from weft.foundation.seeds import derive
from weft.foundation.spec import Tree
from weft.parts.auxiliary import summing_by
from weft.parts.lora import merged_state
from weft.tasks.support.losses import spread as spread_evenly
from weft.tasks.task import Batch, Split, Task
from weft.training.distribution import Distribution, MicroBatch, StepModule, TrainingState
from weft.training.parallel.collectives import sum_over
from weft.training.parallel.layout import DATA, TENSOR, ParallelLayout
from weft.training.parallel.processes.run_folders import LeadingFolder, SilentFolder, launch_name, read_launch
from weft.training.parallel.sharded_state import ShardedState, StateLayout
from weft.training.parallel.tensor_splits import Sections, fused_sections
from weft.training.parallel.world import World
from weft.training.training_spec import TrainingSpec


class ManyProcesses(Distribution):
    """What all distributions over processes share.

    A launcher passes signals on that its processes got from the terminal already: a second one does not insist.
    """

    signals = (signal.SIGINT, signal.SIGTERM)
    insist = False
    compiles = False

    def __init__(self, world: World, layout: ParallelLayout) -> None:
        super().__init__(world.device)
        self.world, self.layout = world, layout
        layout.expect_possible(world.device.type)
        self.data_ranks = layout.data_ranks(world.size)
        self.data_rank = world.rank // layout.together
        self.leads = world.leads
        self._asked_to_stop = False
        self.mesh = _mesh(world.device.type, self.data_ranks, layout.together)
        self.data_group = self.mesh.get_group(DATA)
        self.states = ShardedState(world.leads)
        self.sections: dict[str, Sections] = {}

    def request_stop(self) -> None:
        """Known to all with the next share."""
        self._asked_to_stop = True

    def agree(self, name: str, make: Callable[[], Any]) -> Any:
        return self.world.from_leader(name, make)

    def first_here(self, do: Callable[[], Any]) -> Any:
        return self.world.first_here("data", do)

    def restarted(self, folder: RunFolder) -> bool:
        """By the name of the launch, which torchrun keeps when it starts workers again, and the run's folder knows."""
        found: bool = self.agree("restarted", lambda: _is_restart(folder.path))
        return found

    def open_folder(self, path: Path) -> RunFolder:
        return LeadingFolder(path) if self.leads else SilentFolder(path)

    def take(self, micro_batches: Sequence[Sequence[int]], read: Callable[[Sequence[int]], Batch]) -> list[MicroBatch]:
        """Every data_ranks-th example is this process's: neighbors of like length are spread evenly."""
        shares = [examples[self.data_rank :: self.data_ranks] for examples in micro_batches]
        batches = [read(share or examples[:1]) for share, examples in zip(shares, micro_batches, strict=True)]
        weights = [float(len(share) > 0) for share in shares]
        answers = [weight * batch.count for weight, batch in zip(weights, batches, strict=True)]
        *sums, stops = self._sum_over_all([*answers, float(self._asked_to_stop)])
        self.stopped = stops > 0
        sums = [number / self.layout.together for number in sums]  # a share was counted by all that compute it
        return [MicroBatch(*share) for share in zip(batches, sums, weights, strict=True)]

    def _sum_over_all(self, numbers: Sequence[float]) -> list[float]:
        total = torch.tensor(numbers, dtype=torch.float64)
        dist.all_reduce(total)
        found: list[float] = total.tolist()
        return found

    def seed(self, seed: int) -> int:
        """Other dropout masks on each data rank; the first one's are those of one process."""
        return derive(seed, "data rank", self.data_rank) if self.data_rank else seed

    @contextlib.contextmanager
    def computing(self, share: MicroBatch, last: bool) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            if self.data_ranks > 1:
                stack.enter_context(summing_by(lambda x: sum_over(x * share.weight, self.data_group)))
            stack.enter_context(self._synchronized(last))
            yield

    @contextlib.contextmanager
    def _synchronized(self, last: bool) -> Iterator[None]:
        yield

    def mean(self, x: Tensor) -> Tensor:
        total = x.detach().clone()
        dist.all_reduce(total, group=self.data_group)
        return total / self.data_ranks

    def leaders(self, number: float) -> float:
        told = torch.tensor([number], dtype=torch.float64)
        dist.broadcast(told, 0)
        return float(told)

    def mean_loss(self, step: nn.Module, split: Split, size: int, most: int | None) -> float:
        total, count = 0.0, 0.0
        step.eval()
        with torch.no_grad():
            for examples in spread_evenly(split.batches(size, None), most, split.tokens):
                share = examples[self.data_rank :: self.data_ranks]
                batch = split.batch(share or examples[:1]).to(self.world.device)
                loss, _ = step(batch)
                if len(share):
                    total, count = total + float(loss), count + batch.count
        total, count = self._sum_over_all([total, count])
        return total / max(count, 1)

    @property
    def _state_layout(self) -> StateLayout:
        return StateLayout(self.sections, self.layout.tensor)

    def write_model(self, folder: RunFolder, module: nn.Module, facts: Tree) -> None:
        found: dict[str, Tensor] = {}
        for name, tensor in module.state_dict().items():
            full = self._state_layout.logical(f"weight.{name}", tensor).detach()
            if self.leads:
                found[name] = full.to("cpu", copy=True)
        if self.leads:
            folder.write_model(merged_state(module, found), facts)

    def save(self, folder: RunFolder, state: TrainingState, step: int, facts: Tree, keep: int, last: bool) -> None:
        """A part by each process, in the background; the last state as one process would write it."""
        if not last:
            self.states.write(folder, self._state_layout, state, step, facts, keep)
            return
        self.states.wait()
        tensors = self.states.gather(self._state_layout, state)
        if self.leads:
            folder.write_snapshot(Snapshot(step, tensors, facts), keep)

    def restore(self, folder: RunFolder, state: TrainingState) -> tuple[int, Tree] | None:
        """The state that the first process finds; each loads its parts of it."""
        newest = self.world.from_leader("state", lambda: _newest(folder))
        if newest is None:
            return None
        path = folder.path / newest
        if path.is_dir():
            index = read_index(path)
            self.states.restore(path, self._state_layout, state)
            return index["step"], index["facts"]
        snapshot = folder.read_state(path)
        self.states.restore(snapshot, self._state_layout, state)
        return snapshot.step, snapshot.facts


class Replicated(ManyProcesses):
    """DDP: the whole model on every process, gradients averaged while they are computed."""

    def spread(self, task: Task, module: nn.Module, training: TrainingSpec, probe: Callable[[], Batch]) -> nn.Module:
        step = StepModule(task, module)
        # One example more would change what batch norms in a module of the user's own know.
        unused = isinstance(module, UserModule) or _has_unused(step, module, probe)
        devices = [self.world.device] if self.world.device.type == "cuda" else None
        # Buffers of Weft's own models do not change while training; statistics of batch norms do.
        self.turn_to(
            DistributedDataParallel(
                step,
                device_ids=devices,
                broadcast_buffers=isinstance(module, UserModule),
                find_unused_parameters=unused,
                gradient_as_bucket_view=True,
            )
        )
        return self.step

    def turn_to(self, spread: nn.Module) -> None:
        assert isinstance(spread, DistributedDataParallel)
        self.step, module = spread, spread.module.model
        self.sections = {} if isinstance(module, UserModule) else fused_sections(module)

    @contextlib.contextmanager
    def _synchronized(self, last: bool) -> Iterator[None]:
        with contextlib.nullcontext() if last else self.step.no_sync():
            yield


@functools.cache
def _mesh(device_type: str, data_ranks: int, tensor_ranks: int) -> DeviceMesh:
    """Made once per process: DTensors remember meshes, and compare them by identity."""
    return init_device_mesh(device_type, (data_ranks, tensor_ranks), mesh_dim_names=(DATA, TENSOR))


def _has_unused(step: StepModule, module: nn.Module, probe: Callable[[], Batch]) -> bool:
    """Whether the loss leaves out some weights, which DDP has to look for at each step."""
    total, auxiliary = step(probe())
    (total if auxiliary is None else total + auxiliary).backward()
    unused = any(weight.requires_grad and weight.grad is None for weight in module.parameters())
    module.zero_grad(set_to_none=True)
    return unused


def _is_restart(path: Path) -> bool:
    if launch_name() is None:
        return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0
    return read_launch(path) == launch_name()


def _newest(folder: RunFolder) -> str | None:
    newest = folder.newest_complete_state()
    return None if newest is None else str(newest.relative_to(folder.path))
