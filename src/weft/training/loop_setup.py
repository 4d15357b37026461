"""Loops of one run: the training itself, and those of the sizes that race for it."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import cast

import torch
from torch import nn

from weft.checkpoints.run_folder import RunFolder
from weft.foundation.seeds import derive
from weft.foundation.threads import number_of_threads
from weft.models.build import AnySpec
from weft.parts.lora import adapt
from weft.tasks.task import PreparedData
from weft.training.averaging import recompute_blocks
from weft.training.distribution import Distribution
from weft.training.guards import expect_lawful
from weft.training.loop import Loop
from weft.training.planning.pace import Clock
from weft.training.planning.plan import TrainingPlan
from weft.training.planning.planned_training import PlannedTraining
from weft.training.planning.step_timing import StepTimer, StepTiming
from weft.training.pretrained.fine_tuning import fully_trained_parts
from weft.training.pretrained.model_source import ModelSource
from weft.training.reporting import Reporter


@dataclass(frozen=True)
class LoopSetup:
    """What all loops of a run share."""

    prepared: PreparedData
    models: ModelSource
    seed: int
    distribution: Distribution
    reporter: Reporter
    clock: Clock

    def build(self, spec: AnySpec) -> nn.Module:
        """The model with its first weights."""
        return self.models.build(spec, self.seed, self.distribution.build_device)

    def loop(
        self,
        planned: PlannedTraining,
        folder: RunFolder,
        module: nn.Module,
        reporter: Reporter | None = None,
        guard: bool = False,
    ) -> Loop:
        """The training of a module, from its first step, in a folder; `guard` against a model that looks ahead."""
        prepared, options = self.prepared, planned.options
        train, validation = (part.fit(cast(AnySpec, module.spec)) for part in (prepared.train, prepared.validation))
        if options.lora is not None:
            adapters = derive(self.seed, "adapters")
            adapt(module, options.lora, options.lora_alpha, adapters, fully_trained_parts(prepared.task))
        if options.precision == "float64":
            module.double()
        if guard:
            expect_lawful(module, 0)
        if options.recompute:
            recompute_blocks(module)
        shares = (folder, self.seed, reporter or self.reporter, self.distribution, self.clock)
        return Loop(prepared.task, module, train, validation, options, planned.plan, *shares)

    def threads(self, plan: TrainingPlan) -> contextlib.AbstractContextManager[None]:
        """Inside, torch computes with the plan's threads; several processes have no more than they were given."""
        alone = self.distribution.data_ranks == 1
        return number_of_threads(plan.threads if alone else min(plan.threads, torch.get_num_threads()))

    def faster_compiled(self, planned: PlannedTraining, seconds: float) -> bool:
        """Whether more steps fit into these seconds through torch.compile; measured where there is time for it."""
        plan, options, distribution = planned.plan, planned.options, self.distribution
        if not distribution.compiles or not plan.step_seconds:
            return False
        half = options.uses_bf16(distribution.device)
        like = StepTiming(plan.step_seconds, plan.batch, plan.threads, half)
        timer = StepTimer(
            self.prepared.task, self.prepared.train, self.models, self.seed, distribution.device, clock=self.clock
        )
        return timer.faster_compiled(planned.spec, options, plan.batch, like, seconds) is not None
