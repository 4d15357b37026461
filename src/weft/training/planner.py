"""The time plan: which model, batch and number of steps give the lowest loss in the given time on this machine.

How the loss falls with parameters N and tokens D is known well enough to compare sizes (Hoffmann et al. 2022):

    loss = E + A / N^0.34 + B / D^0.28

Text that is read again teaches less: U tokens read 1 + R times count as D = U + U R* (1 - exp(-R / R*)), R* = 15.4
(Muennighoff et al. 2023). How many tokens fit in the time is measured: a few steps of the sizes in question.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch

from weft.foundation.spec import Tree
from weft.models.build import AnySpec
from weft.models.estimates import estimate
from weft.tasks.task import Recipe, Size, Split, Task
from weft.training.model_source import ModelSource, SpecModels
from weft.training.pace import FORWARD, SCORING, Clock
from weft.training.plan import FINAL_SHARE, LEAST_SECONDS, TrainingPlan
from weft.training.step_timing import StepTimer, StepTiming
from weft.training.training_spec import TrainingSpec

A, ALPHA, B, BETA, R_STAR = 406.4, 0.34, 410.7, 0.28, 15.4
STEP_SHARE = 0.88  # of the time is for steps, about: sizes are compared by it
EVALUATION_SHARE = 0.05  # of the steps' time, at most, for all evaluations together
EVALUATIONS = 10  # per training, unless training.evaluate_every says otherwise
MEASURING_SHARE = 0.06  # of the time, at most 10 s
COMPILE_SECONDS = 60.0  # that torch.compile takes, about, to be tried
COMPILE_SHARE = 0.03  # of the time, at most, to find out whether it pays
BATCHES = tuple(2**power for power in range(9, 18))


@dataclass(frozen=True)
class PlannedSize:
    """A size with its spec, batch and timing, the steps that fit in the time and the most that are useful, and the
    loss that the formula expects."""

    size: Size
    spec: AnySpec
    batch: int
    timing: StepTiming
    steps: int
    most_steps: int
    loss: float


def expected_loss(parameters: float, tokens: float, unique: float) -> float:
    """The part of the loss above the entropy E, for comparing sizes; see the formula above."""
    again = max(0.0, tokens / unique - 1)
    worth = min(tokens, unique) + unique * R_STAR * (1 - math.exp(-again / R_STAR))
    return A / max(parameters, 1) ** ALPHA + B / max(worth, 1) ** BETA


def suitable_batch(tokens: float) -> int:
    """Tokens per step for a training on `tokens` tokens: about 1.6 sqrt(tokens), as a power of two."""
    return min(BATCHES, key=lambda batch: abs(math.log(batch / (1.6 * math.sqrt(max(tokens, 1))))))


@dataclass
class Planner:
    """Makes a plan for one task and its data.

    Training options come from `training_changes` (the user's), else `defaults`, else the task's recipe. `design` gives
    the model of a size where no spec is given: the task's default model, unless another is asked for. `models` builds
    a spec's model and says what it costs. Of `data_ranks` processes each computes its share of a batch at once. The
    `test` split is scored at the end. The `clock` is the one that the plan will be kept by. `compile` None: steps go
    through torch.compile if that is measured to pay within the time.
    """

    task: Task
    train: Split
    validation: Split
    model_changes: Tree
    training_changes: Tree
    seed: int
    device: torch.device
    defaults: Tree = field(default_factory=dict)
    design: Callable[[Size], AnySpec] | None = None
    models: ModelSource = field(default_factory=SpecModels)
    data_ranks: int = 1
    test: Split | None = None
    clock: Clock = time.perf_counter
    compile: bool | None = None

    def __post_init__(self) -> None:
        self.timer = StepTimer(self.task, self.train, self.models, self.seed, self.device, self.data_ranks, self.clock)
        self.model_of = self.design or self.task.default_model

    def plan_steps(self, spec: AnySpec | None, steps: int) -> tuple[AnySpec, TrainingSpec, TrainingPlan]:
        """A plan for a number of steps with the given or a medium-sized model; nothing is measured."""
        sizes = self.task.sizes(self.train)
        size = self._requested_size(next((s for s in sizes if s.width >= 128), sizes[-1]))
        asked = self._configure(size, spec, 1.0)[1].batch
        batch = asked or (suitable_batch(steps * 1500.0) if spec is None else 2048)
        epochs = steps * batch / max(1, self.train.tokens)
        chosen, options = self._configure(size, spec, epochs)
        threads = options.threads or torch.get_num_threads()
        plan = self._plan(chosen, options, steps, batch, threads)
        return chosen, options, plan.replace(compiled=bool(self.compile))

    def plan_minutes(
        self, spec: AnySpec | None, minutes: float, started: float
    ) -> tuple[AnySpec, TrainingSpec, TrainingPlan]:
        """A plan for the time since `started`: the formula ranks the sizes, and the most promising are measured."""
        budget = self._seconds_for_steps(minutes, started)
        deadline = self.clock() + max(2.0, min(10.0, MEASURING_SHARE * 60 * minutes))
        sizes: list[Size | None] = [None]
        if spec is None:
            sizes = list(dict.fromkeys(map(self._requested_size, self.task.sizes(self.train))))
        found: dict[Size | None, PlannedSize] = {}
        candidate = 0 if len(sizes) == 1 else min(2, len(sizes) - 1)
        while True:
            choice = self._measure(sizes[candidate], spec, budget, found)
            found[sizes[candidate]] = choice
            candidate = -1 if len(sizes) == 1 else self._next_candidate(sizes, found, budget)
            if candidate < 0 or self.clock() > deadline:
                break
        if candidate >= 0 and _weight(sizes[candidate]) < min(map(_weight, found)):
            # A slow machine had no time to measure the smaller model that suits it.
            found[sizes[candidate]] = self._extrapolate(sizes[candidate], budget, found)
        best = min(found.values(), key=lambda choice: choice.loss)
        best, compiled = self._compiled_if_faster(best, spec, budget)
        final = self._final_seconds(best, minutes)
        left = max(LEAST_SECONDS, 60 * minutes - (self.clock() - started) - final)
        seconds = (1 + EVALUATION_SHARE) * best.timing.seconds
        least = self._configure(best.size, spec, 1.0)[1].least_steps
        best = replace(best, steps=max(1, least, min(int(left / seconds), best.most_steps)))
        epochs = best.steps * best.batch / max(1, self.train.tokens)
        chosen, options = self._configure(best.size, spec, epochs)
        if options.uses_bf16(self.device) and not best.timing.half:
            options = options.replace(precision="float32")  # measured to be faster
        plan = self._plan(chosen, options, best.steps, best.batch, best.timing.threads)
        tried = tuple(
            {
                "parameters": self.models.cost(choice.spec).parameters,
                "width": choice.size.width,
                "layers": choice.size.layers,
                "batch": choice.batch,
                "tokens_per_second": round(choice.timing.tokens_per_second),
                "steps": choice.steps,
                "expected": round(choice.loss, 4),
            }
            for choice in sorted(found.values(), key=lambda choice: choice.loss)
        )
        before = self.clock() - started
        plan = plan.replace(
            compiled=compiled,
            minutes=minutes,
            before=before,
            seconds=before + best.steps * seconds + final,
            step_seconds=best.timing.seconds,
            most_steps=max(least, best.most_steps),
            final_seconds=self._slow_seconds(minutes),
            tried=list(tried),
        )
        return chosen, options, plan

    def _compiled_if_faster(self, best: PlannedSize, spec: AnySpec | None, seconds: float) -> tuple[PlannedSize, bool]:
        """The choice, by compiled steps if more of them fit into these seconds; tried where there is time for it."""
        if self.compile is not None or COMPILE_SHARE * seconds < COMPILE_SECONDS:
            return best, bool(self.compile)
        chosen, options = self._configure(best.size, spec, 1.0)
        found = self.timer.compiled(chosen, options, best.batch, best.timing)
        if found is None:
            return best, False
        timing, cost = found  # the training itself compiles once more
        faster = (seconds - 2 * cost) / timing.seconds > seconds / best.timing.seconds
        return (replace(best, timing=timing), True) if faster else (best, False)

    def _final_seconds(self, choice: PlannedSize, minutes: float) -> float:
        """The time after the last step: validation and test data are scored once more."""
        per_token = SCORING * FORWARD * choice.timing.seconds / choice.timing.tokens
        return per_token * self._final_tokens + self._slow_seconds(minutes)

    @property
    def _final_tokens(self) -> int:
        return self.validation.tokens + (0 if self.test is None else self.test.tokens)

    def _slow_seconds(self, minutes: float) -> float:
        """For tasks that measure their answers for a share of the time; some take up to three times as long."""
        slow = type(self.task).evaluation_subset is not Task.evaluation_subset
        return 2 * FINAL_SHARE * 60 * minutes if slow else 0.0

    def _requested_size(self, size: Size) -> Size:
        """The size with the user's width and layers, so that heads, groups and mixers follow them."""
        given = {name: self.model_changes[name] for name in ("width", "layers") if name in self.model_changes}
        return replace(size, **{name: value for name, value in given.items() if type(value) is int and value > 0})

    def _seconds_for_steps(self, minutes: float, started: float) -> float:
        """The time that is left, less the share for evaluations and the end."""
        return STEP_SHARE * max(LEAST_SECONDS, 60 * minutes - (self.clock() - started))

    def _next_candidate(
        self, sizes: Sequence[Size | None], found: dict[Size | None, PlannedSize], budget: float
    ) -> int:
        """The size of the lowest expected loss, speeds scaled by FLOPs from measured ones; -1 if it was measured."""
        expected_losses = []
        for size in sizes:
            if size in found:
                expected_losses.append(found[size].loss)
                continue
            near = _nearest(size, found)
            spec = self.model_of(size) if size is not None else near.spec
            cost = _flops(spec) / _flops(near.spec)
            tokens = budget * near.timing.tokens_per_second / cost
            expected_losses.append(self._expected(spec, tokens))
        best = min(range(len(expected_losses)), key=expected_losses.__getitem__)
        return -1 if sizes[best] in found else best

    def _expected(self, spec: AnySpec, tokens: float) -> float:
        return expected_loss(self.models.cost(spec).mixing, tokens, max(1, self.train.tokens))

    def _measure(
        self, size: Size | None, spec: AnySpec | None, budget: float, found: dict[Size | None, PlannedSize]
    ) -> PlannedSize:
        chosen, options = self._configure(size or Size(), spec, 1.0)
        tokens_per_second = max((choice.timing.tokens_per_second for choice in found.values()), default=4000.0)
        batch = options.batch or suitable_batch(tokens_per_second * budget)
        timing, timed = self.timer.fastest(chosen, options, batch), batch
        if options.batch is None:
            batch = suitable_batch(timing.tokens_per_second * budget)
        if not 0.4 < batch / timed < 2.5:
            timing, timed = self.timer.fastest(chosen, options, batch), batch
        return self._planned(size or Size(), chosen, batch, timing.scaled(batch / timed), budget)

    def _extrapolate(self, size: Size | None, budget: float, found: dict[Size | None, PlannedSize]) -> PlannedSize:
        """A size that was not measured: its time per token is that of the nearest one, scaled by FLOPs."""
        near = _nearest(size, found)
        chosen, options = self._configure(size or Size(), None, 1.0)
        timing = replace(near.timing, seconds=near.timing.seconds * _flops(chosen) / _flops(near.spec))
        batch = options.batch or suitable_batch(timing.tokens_per_second * budget)
        return self._planned(size or Size(), chosen, batch, timing.scaled(batch / near.batch), budget)

    def _planned(self, size: Size, spec: AnySpec, batch: int, timing: StepTiming, budget: float) -> PlannedSize:
        """As many steps as fit in the time, or as the task's recipe finds useful."""
        recipe: Recipe = self.task.recipe(size, 1.0)
        most = max(20, int(recipe.most_epochs * self.train.tokens / timing.tokens))
        steps = max(1, min(int(budget / timing.seconds), most))
        return PlannedSize(size, spec, batch, timing, steps, most, self._expected(spec, steps * timing.tokens))

    def _configure(self, size: Size, spec: AnySpec | None, epochs: float) -> tuple[AnySpec, TrainingSpec]:
        """The model and training options of a size, by the task's recipe and the user's changes."""
        recipe = self.task.recipe(size, epochs)
        own = self.model_of(replace(size, dropout=recipe.dropout)) if spec is None else spec
        own = own.replace(**self.model_changes) if self.model_changes else own
        self.task.expect_model(own)
        return own, TrainingSpec(**{**recipe.training, **self.defaults, **self.training_changes})

    def _plan(self, spec: AnySpec, options: TrainingSpec, steps: int, batch: int, threads: int) -> TrainingPlan:
        cost = self.models.cost(spec)
        batch = max(batch, self.train.fit(spec).least)
        every = options.evaluate_every or max(1, math.ceil(steps / EVALUATIONS))
        tokens = steps * batch
        # Forward costs a third of a step: all evaluations together take at most about EVALUATION_SHARE.
        evaluated = max(batch, 3 * tokens // (20 * max(1, steps // every)))
        return TrainingPlan(
            steps=steps,
            least_steps=min(steps, options.least_steps),
            batch=batch,
            evaluate_every=every,
            evaluate_tokens=options.evaluate_tokens or evaluated,
            held_out=self.validation.tokens,
            final_tokens=self._final_tokens,
            checkpoint_every=options.checkpoint_every or every,
            threads=threads,
            parameters=cost.parameters,
            tokens=tokens,
            epochs=tokens / max(1, self.train.tokens),
            memory=cost.memory + batch // options.accumulate * 4 * cost.activations,
        )


def _nearest(size: Size | None, found: dict[Size | None, PlannedSize]) -> PlannedSize:
    """The measured size whose blocks have the most similar number of weights."""
    return found[min(found, key=lambda other: abs(math.log(_weight(other) / _weight(size))))]


def _weight(size: Size | None) -> float:
    return 1.0 if size is None else float(size.width**2 * size.layers)


def _flops(spec: AnySpec) -> float:
    return float(max(1, estimate(spec).flops_per_token))
