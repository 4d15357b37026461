"""Learning from little: a trained model with new classes keeps its body, or all of its weights are trained on.

First the last linear map is fitted to the vectors that the body gives (`frozen_head`); all weights start from there
(Kumar et al. 2022). Where examples are few, evidence decides: all weights are trained on four fifths of the training
examples for a share of the time, and have to be better on the last fifth than a map that was fitted to as many, by more
than one standard error. The validation data choose nothing here.
"""

from __future__ import annotations

import copy
import math
import shutil
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from weft.checkpoints.run_folder import RunFolder
from weft.foundation.errors import WeftError
from weft.tasks.support.evaluation.calibration import fit_temperature
from weft.tasks.support.frozen_head import (
    FOLDS,
    LinearMap,
    Vectors,
    can_be_fitted,
    cross_validate,
    fit_linear,
    fold_of,
    last_map,
    read_vectors,
    set_last_map,
)
from weft.tasks.task import Split
from weft.training.guards import TrainingError
from weft.training.loop_setup import LoopSetup
from weft.training.planning.planned_training import PlannedTraining
from weft.training.pretrained.head_record import HeadRecord
from weft.training.reporting import Reporter

MANY = 2000  # answers from which on all weights are trained without a trial
TRIAL_SHARE = 0.3  # of the time, at most, for a trial
READING_SHARE = 0.1  # of the time, at most, for the vectors of the training data
FORWARD = 1 / 3  # of a step's time
FOLD = FOLDS - 1  # that a trial is judged on
TRIAL = ".trial"

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class HeadChoice:
    """The choice for one training; `new_classes`: the model's last map has not learned them."""

    setup: LoopSetup
    planned: PlannedTraining
    module: nn.Module
    folder: RunFolder
    new_classes: bool

    @property
    def applies(self) -> bool:
        """Whether there is a head to fit, as asked or because nothing was."""
        options, distribution = self.planned.options, self.setup.distribution
        able = (
            can_be_fitted(self.setup.prepared.task, self.module)
            and options.lora is None
            and distribution.data_ranks == 1
            and distribution.holds_whole_model
        )
        if self._asked and not able:
            raise WeftError(
                f"training.head={options.head} fits the last layer of a model that chooses among classes, in one "
                "process and without adapters: leave it out"
            )
        # A training of so many steps is what it is.
        auto = options.head == "auto" and self.new_classes and self.planned.plan.minutes is not None
        return able and (self._asked or auto)

    @property
    def _asked(self) -> bool:
        return self.planned.options.head in ("linear", "start")

    def settle(self) -> PlannedTraining:
        """Choose if that is not on record, and give the module its fitted map."""
        clock, record = self.setup.clock, self.planned.plan.head
        began, classes = clock(), len(self.setup.prepared.task.answers or ())
        self.setup.reporter.on_stage("fitting the last layer")
        with self.setup.threads(self.planned.plan):
            train = self._train()
            vectors = read_vectors(self.setup.prepared.task, self.module, train)
            if record is None:
                record = self._choose(train, vectors, classes)
                record = record.replace(seconds=round(clock() - began, 3))
                self.setup.reporter.on_note(record.describe())
            set_last_map(self.module, fit_linear(vectors, classes, (record.penalty,))[0])
        planned = self.planned.with_plan(self.planned.plan.replace(head=record.to_tree()))
        self.folder.write_plan(planned.plan.to_tree())
        return planned

    def _train(self) -> Split:
        """The training data, or as many of them as can be read in a share of the time."""
        plan = self.planned.plan
        train = self.setup.prepared.train.fit(self.planned.spec)
        if not plan.budget or not plan.step_seconds:
            return train
        seconds = FORWARD * plan.step_seconds * train.tokens / plan.batch
        return train.limit(max(1, int(len(train) * min(1.0, READING_SHARE * plan.budget / seconds))))

    def _choose(self, train: Split, vectors: Vectors, classes: int) -> HeadRecord:
        found, asked = cross_validate(vectors, classes), self._asked
        record = HeadRecord(
            trained="head" if self.planned.options.head == "linear" else "all",
            penalty=found.penalty,
            loss=found.loss,
            answers=len(found.losses),
            asked=asked,
        )
        if asked or len(found.losses) > MANY:
            return record
        judged = fold_of(vectors, FOLD)
        if not judged.any() or judged.all():  # too few to judge on
            return record.replace(trained="head", gain=0.0, error=0.0)
        fitted = fit_linear(vectors.part(~judged), classes, (found.penalty,))[0]
        tuned, steps = self._trial(train, fitted)
        if tuned is None:
            return record.replace(trained="head", tried=steps)
        apart = _nats(fitted, vectors.part(judged)) - tuned
        gain, error = float(apart.mean()), float(apart.std(ddof=1) / math.sqrt(len(apart))) if len(apart) > 1 else 0.0
        return record.replace(trained="all" if gain > error else "head", tried=steps, gain=gain, error=error)

    def _trial(self, train: Split, fitted: LinearMap) -> tuple[Floats | None, int]:
        """(nats of the answers of the judged fold after all weights were trained on the others, the steps taken); None
        where the training diverged."""
        plan, setup = self.planned.plan, self.setup
        setup.reporter.on_stage("trying to train all weights")
        others = train.pick([number for number in range(len(train)) if number % FOLDS != FOLD])
        held = train.pick(range(FOLD, len(train), FOLDS))
        steps = max(1, math.ceil(plan.steps * len(others) / len(train)))
        if plan.budget and plan.step_seconds:
            steps = max(1, min(steps, int(TRIAL_SHARE * plan.budget / plan.step_seconds)))
        shorter = plan.replace(steps=steps, least_steps=1, most_steps=None, minutes=None, evaluate_every=steps)
        module = copy.deepcopy(self.module)
        set_last_map(module, fitted)
        path = self.folder.path / TRIAL
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir()
        try:
            part = replace(setup, prepared=replace(setup.prepared, train=others, validation=held))
            loop = part.loop(self.planned.with_plan(shorter), RunFolder(path), module, Reporter())
            loop.run(until=steps)
            if loop.stop_reason == "interrupt":
                raise KeyboardInterrupt
            with loop.evaluated():
                vectors = read_vectors(setup.prepared.task, module, held)
                own = last_map(module)
                assert own is not None
                bias = own.weight.new_zeros(len(own.weight)) if own.bias is None else own.bias
                tuned = LinearMap(own.weight.detach().cpu().double(), bias.detach().cpu().double(), 0.0)
                return _nats(tuned, vectors), steps
        except TrainingError:
            return None, steps
        finally:
            shutil.rmtree(path, ignore_errors=True)


def _nats(found: LinearMap, vectors: Vectors) -> Floats:
    """Nats of each answer, at the temperature that suits the model best: that is fitted after every training."""
    logits: Tensor = vectors.x @ found.weight.T + found.bias
    temperature = fit_temperature(logits.numpy(), vectors.labels.numpy())
    scaled = replace(found, weight=found.weight / temperature, bias=found.bias / temperature)
    nats: Floats = scaled.losses(vectors).numpy()
    return nats
