"""How a training is distributed. Here: not at all, in one process; over several in `training/parallel/`.

The loop asks its distribution for its share of each batch, and for sums, norms and states over all processes.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from weft.checkpoints.run_folder import RunFolder, Snapshot
from weft.foundation.spec import Tree
from weft.parts.lora import merged_state
from weft.tasks.support.losses import mean_loss
from weft.tasks.task import Batch, Split, Task
from weft.training.averaging import MovingAverage
from weft.training.native import clip_gradients
from weft.training.snapshots import gather_state, restore_state
from weft.training.training_spec import TrainingSpec


class StepModule(nn.Module):
    """What a step calls, one module that torch can wrap and spread: (sum of losses, auxiliary loss or None) of a batch.

    `model` is the model itself, or the same compiled.
    """

    def __init__(self, task: Task, model: nn.Module) -> None:
        super().__init__()
        self.task, self.model = task, model

    def forward(self, batch: Batch, smoothing: float = 0.0) -> tuple[Tensor, Tensor | None]:
        loss = self.task.loss(self.model, batch, smoothing)
        return loss.total, loss.auxiliary


@dataclass(frozen=True)
class MicroBatch:
    """This process's share of a micro-batch, and the number of answers in all shares.

    A process without a share computes one example that counts nothing (`weight` 0), because the others wait for it.
    """

    batch: Batch
    answers: float
    weight: float = 1.0


@dataclass(frozen=True)
class TrainingState:
    """What a snapshot holds: the model, its optimizers and the moving average of its weights, if any."""

    module: nn.Module
    optimizers: Sequence[Optimizer]
    average: MovingAverage | None = None


class Distribution:
    """One process, which holds everything. `stopped` once somebody asked to stop and all processes know."""

    data_ranks = 1  # shares of a batch
    leads = True  # prints, and writes the run folder's small files
    holds_whole_model = True
    compiles = True  # whether steps may go through torch.compile
    signals: tuple[signal.Signals, ...] = (signal.SIGINT,)  # ask to stop after the step
    insist = True  # whether a second signal stops at once

    def __init__(self, device: torch.device | None = None) -> None:
        self.device = device or torch.device("cpu")
        self.stopped = False

    @property
    def build_device(self) -> torch.device:
        """Where the model is made, before it is spread."""
        return self.device

    def request_stop(self) -> None:
        """Stop after this step."""
        self.stopped = True

    def agree(self, name: str, make: Callable[[], Any]) -> Any:
        """What the first process makes, as plain JSON, for all."""
        return make()

    def first_here(self, do: Callable[[], Any]) -> Any:
        """`do` on the first process of a machine, then on its others, which find what was cached."""
        return do()

    def restarted(self, folder: RunFolder) -> bool:
        """Whether a launcher started this training again after a process failed."""
        return False

    def open_folder(self, path: Path) -> RunFolder:
        """The run's folder, as this process may write it."""
        return RunFolder(path)

    def spread(self, task: Task, module: nn.Module, training: TrainingSpec, probe: Callable[[], Batch]) -> nn.Module:
        """Spread the model, in place; gives what steps call. `probe` makes a small batch."""
        return StepModule(task, module)

    def turn_to(self, spread: nn.Module) -> None:
        """Go on with the steps of a model that was spread before, where several are trained by turns."""

    def take(self, micro_batches: Sequence[Sequence[int]], read: Callable[[Sequence[int]], Batch]) -> list[MicroBatch]:
        """This process's shares."""
        batches = [read(examples) for examples in micro_batches]
        return [MicroBatch(batch, batch.count) for batch in batches]

    def seed(self, seed: int) -> int:
        """The seed of the random numbers of a step."""
        return seed

    @contextlib.contextmanager
    def computing(self, share: MicroBatch, last: bool) -> Iterator[None]:
        """Around forward and backward of a share; gradients are reduced with the `last` one of a step."""
        yield

    def mean(self, x: Tensor) -> Tensor:
        """The mean of a number over data ranks."""
        return x

    def clip(self, weights: Sequence[Tensor], most: float) -> Tensor:
        """Scale the gradients so that their norm is at most `most`; gives the norm before."""
        return clip_gradients(weights, most)

    def leaders(self, number: float) -> float:
        """The first process's number, such as a time, by which all decide the same."""
        return number

    def mean_loss(self, step: nn.Module, split: Split, size: int, most: int | None) -> float:
        """Nats per answer over a split, or over about `most` tokens of it."""
        assert isinstance(step, StepModule)
        return mean_loss(step.task, step.model, split, size, most)

    def write_model(self, folder: RunFolder, module: nn.Module, facts: Tree) -> None:
        """Write the model's weights, adapters merged."""
        folder.write_model(merged_state(module), facts)

    def save(self, folder: RunFolder, state: TrainingState, step: int, facts: Tree, keep: int, last: bool) -> None:
        """Write the training state; it is there when this returns if it is the `last` one."""
        tensors = gather_state(state.module, state.optimizers, state.average)
        folder.write_snapshot(Snapshot(step, tensors, facts), keep)

    def restore(self, folder: RunFolder, state: TrainingState) -> tuple[int, Tree] | None:
        """Load the newest training state; gives (step, facts), or None if there is none."""
        snapshot = folder.read_snapshot()
        if snapshot is None:
            return None
        restore_state(snapshot.tensors, state.module, state.optimizers, state.average)
        return snapshot.step, snapshot.facts
