"""How long a training step takes here: a few steps of a model, in the ways that this machine offers.

All threads or one, bf16 or float32 on CPUs that have units for bf16, and torch.compile or not: what is measured to be
fastest is taken, because the number of layers, their width and the batch decide which one that is.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from weft.foundation.threads import number_of_threads
from weft.models.build import AnySpec
from weft.parts.lora import adapt
from weft.tasks.task import Split, Task
from weft.training.optimizers import build_optimizers
from weft.training.planning.pace import Clock
from weft.training.pretrained.fine_tuning import fully_trained_parts
from weft.training.pretrained.model_source import ModelSource
from weft.training.training_spec import TrainingSpec

LOG = logging.getLogger(__name__)
COMPILE_SECONDS = 60.0  # that torch.compile takes, about, to be tried
COMPILE_SHARE = 0.03  # of the time, at most, to find out whether it pays
MOST_STEPS, ENOUGH = 6, 1.0  # steps, of which the first warms up, and seconds after which no further one is taken


@dataclass(frozen=True)
class StepTiming:
    """The measured time of one step: `seconds` for `tokens` tokens with `threads` threads, in bf16 if `half`."""

    seconds: float
    tokens: int
    threads: int
    half: bool = False

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds

    def scaled(self, times: float) -> StepTiming:
        """The timing of a batch `times` as large, at the same tokens per second."""
        return replace(self, seconds=self.seconds * times, tokens=max(1, round(self.tokens * times)))


@dataclass(frozen=True)
class StepTimer:
    """Takes steps of a task's models on its training data; of `data_ranks` processes each computes its share."""

    task: Task
    train: Split
    models: ModelSource
    seed: int
    device: torch.device
    data_ranks: int = 1
    clock: Clock = time.perf_counter

    def fastest(self, spec: AnySpec, options: TrainingSpec, batch: int, like: StepTiming | None = None) -> StepTiming:
        """The time per step with all threads or with one, in the precisions to choose from: whichever is fastest.

        `like`: in the way that was the fastest with another batch.
        """
        module, counts = self._module(spec, options), [options.threads]
        if like is not None:
            return self._steps(module, module, spec, options, batch, like.threads, like.half)
        if not options.threads:
            counts = sorted({1, torch.get_num_threads()}, reverse=True)
        timings = [
            self._steps(module, module, spec, options, batch, threads, half)
            for half in self._precisions(options)
            for threads in counts
        ]
        return min(timings, key=lambda timing: timing.seconds)

    def faster_compiled(
        self, spec: AnySpec, options: TrainingSpec, batch: int, like: StepTiming, seconds: float
    ) -> StepTiming | None:
        """The timing through torch.compile if more steps fit into these seconds; tried where there is time for it."""
        if COMPILE_SHARE * seconds < COMPILE_SECONDS:
            return None
        found = self.compiled(spec, options, batch, like)
        if found is None:
            return None
        timing, cost = found  # the training itself compiles once more
        return timing if (seconds - 2 * cost) / timing.seconds > seconds / like.seconds else None

    def compiled(
        self, spec: AnySpec, options: TrainingSpec, batch: int, like: StepTiming
    ) -> tuple[StepTiming, float] | None:
        """(the time per step through torch.compile, the seconds until it was compiled); None where it fails."""
        module = self._module(spec, options)
        began = self.clock()
        try:
            through: Any = torch.compile(module, dynamic=True)
            timing = self._steps(module, through, spec, options, batch, like.threads, like.half)
        except Exception as error:  # whatever the compiler raises, training works without it
            LOG.info("torch.compile does not work here: %s", error)
            return None
        finally:
            torch.compiler.reset()
        return timing, max(0.0, self.clock() - began - ENOUGH)

    def _precisions(self, options: TrainingSpec) -> Sequence[bool]:
        """bf16 first; both only where the user leaves the choice and neither is always better."""
        half = options.uses_bf16(self.device)
        return (True, False) if half and options.precision == "auto" and self.device.type == "cpu" else (half,)

    def _module(self, spec: AnySpec, options: TrainingSpec) -> nn.Module:
        module = self.models.build(spec, self.seed, self.device)
        if options.lora is not None:
            adapt(module, options.lora, whole=fully_trained_parts(self.task))
        return module.train()

    def _steps(
        self, module: nn.Module, through: nn.Module, spec: AnySpec, options: TrainingSpec, batch: int, threads: int,
        half: bool,
    ) -> StepTiming:  # fmt: skip
        """The mean over a few steps of `module`, called as `through`; the first is not counted."""
        part = self.train.fit(spec)
        batches = part.batches(max(part.least, batch // self.data_ranks), self.seed)
        optimizers = build_optimizers(module, options.optimizer, options.rate, options.matrix_rate, 0.0)
        times, tokens = [], 0
        with number_of_threads(threads):
            began = self.clock()
            for number in range(MOST_STEPS):
                start = self.clock()
                one = part.batch(batches[number % len(batches)], self.seed).to(self.device)
                with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=half):
                    loss = self.task.loss(through, one, options.smoothing)
                (loss.total / max(1, loss.count)).backward()
                for optimizer in optimizers:
                    optimizer.step()
                    optimizer.zero_grad(set_to_none=True)
                if self.device.type == "cuda":
                    torch.cuda.synchronize(self.device)
                if number == 0:
                    began = self.clock()
                    continue
                times.append(self.clock() - start)
                tokens += one.tokens
                if self.clock() - began > ENOUGH:
                    break
        return StepTiming(sum(times) / len(times), max(1, self.data_ranks * tokens // len(times)), threads, half)
