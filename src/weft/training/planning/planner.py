"""The time plan: which model, batch and number of steps give the lowest loss in the given time on this machine.

The formula of `scaling` ranks sizes by parameters and tokens. How many tokens fit in the time is measured: a few steps
of the sizes in question. Where there is time for it, the best of them then race (`race`), and their losses decide.
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
from weft.training.planning.pace import FORWARD, SCORING, Clock
from weft.training.planning.plan import FINAL_SHARE, LEAST_SECONDS, TrainingPlan
from weft.training.planning.planned_training import PlannedTraining
from weft.training.planning.scaling import expected_loss
from weft.training.planning.step_timing import StepTimer, StepTiming
from weft.training.pretrained.model_source import ModelSource, SpecModels
from weft.training.racing.race_data import can_hold_back
from weft.training.racing.race_record import RaceEntrant
from weft.training.racing.rungs import enough_steps, losers_share, race_steps
from weft.training.training_spec import TrainingSpec

STEP_SHARE = 0.88  # of the time is for steps, about: sizes are compared by it
EVALUATION_SHARE = 0.05  # of the steps' time, at most, for all evaluations together
EVALUATIONS = 10  # per training, unless training.evaluate_every says otherwise
MEASURING_SHARE = 0.06  # of the time, at most
MEASURING_SECONDS = 5.0  # at most, and as many for each size that is wanted
PROMISING = 1.06  # times the lowest expected loss: sizes above it do not race
BATCHES = tuple(2**power for power in range(9, 18))


@dataclass(frozen=True)
class PlannedSize:
    """A size with its spec, batch and timing, the steps that fit in the time and the most that are useful, and the
    loss that the formula expects; not `timed` where its speed is only reckoned from another's."""

    size: Size
    spec: AnySpec
    batch: int
    timing: StepTiming
    steps: int
    most_steps: int
    loss: float
    timed: bool = True


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
        batch = asked or (self._suitable_batch(size, steps * 1500.0) if spec is None else 2048)
        epochs = steps * batch / max(1, self.train.tokens)
        chosen, options = self._configure(size, spec, epochs)
        threads = options.threads or torch.get_num_threads()
        plan = self._plan(chosen, options, steps, batch, threads)
        return chosen, options, plan.replace(compiled=bool(self.compile))

    def plan_minutes(
        self, spec: AnySpec | None, minutes: float, started: float
    ) -> tuple[AnySpec, TrainingSpec, TrainingPlan]:
        """A plan for the time since `started`: the formula ranks the sizes, and the most promising are measured."""
        best = self.plan_entrants(spec, minutes, started, 1)[0]
        return best.spec, best.options, best.plan

    def plan_entrants(self, spec: AnySpec | None, minutes: float, started: float, most: int) -> list[PlannedTraining]:
        """Plans of the `most` best sizes, or fewer, the best first: each counts on the time that the others will use.

        They differ in width or layers, and are expected to be nearly as good as the best.
        """
        budget = self._seconds_for_steps(minutes, started)
        found = self._measure_best(spec, minutes, budget, most)
        ranked = sorted(found.values(), key=lambda choice: choice.loss)
        entrants = [ranked[number] for number in _different([choice.size for choice in ranked])]
        entrants = [choice for choice in entrants if choice.loss <= PROMISING * ranked[0].loss]
        entrants = entrants[:most]
        if not self._can_race(entrants, spec):
            lightest = min(_weight(choice.size) for choice in ranked if choice.timed)
            entrants = [next(one for one in ranked if one.timed or _weight(one.size) < lightest)]
        compiled = bool(self.compile)
        if len(entrants) == 1 and self.compile is None:
            entrants, compiled = self._compiled_if_faster(entrants[0], spec, budget)
        tried = [self._describe(choice) for choice in ranked]
        planned = [self._finished(choice, spec, minutes, started, len(entrants)) for choice in entrants]
        return [one.with_plan(one.plan.replace(compiled=compiled, tried=tried)) for one in planned]

    def _measure_best(
        self, spec: AnySpec | None, minutes: float, budget: float, most: int
    ) -> dict[Size | None, PlannedSize]:
        """The `most` promising sizes, at least one of them measured."""
        limit = min((1 + most) * MEASURING_SECONDS, MEASURING_SHARE * 60 * minutes)
        deadline = self.clock() + max(2.0, limit)
        sizes: list[Size | None] = [None]
        if spec is None:
            sizes = list(dict.fromkeys(map(self._requested_size, self.task.sizes(self.train))))
        found: dict[Size | None, PlannedSize] = {}
        candidate = 0 if len(sizes) == 1 else min(2, len(sizes) - 1)
        while True:
            choice = self._measure(sizes[candidate], spec, budget, found)
            found[sizes[candidate]] = choice
            candidate = -1 if len(sizes) == 1 else self._next_candidate(sizes, found, budget, most)
            if candidate < 0 or self.clock() > deadline:
                break
        # Where there was no time to measure, speeds follow from FLOPs: a smaller model that suits a slow machine, and
        # sizes that race, whose own steps will tell.
        for _ in range(most):
            place = -1 if len(sizes) == 1 else self._next_candidate(sizes, found, budget, most)
            if place >= 0 and (most > 1 or _weight(sizes[place]) < min(map(_weight, found))):
                found[sizes[place]] = self._extrapolate(sizes[place], budget, found)
        return found

    def _can_race(self, entrants: Sequence[PlannedSize], spec: AnySpec | None) -> bool:
        """Whether the steps are enough, and where the validation data may choose nothing, the training data."""
        options = self._configure(entrants[0].size, spec, 1.0)[1]
        judged = options.weights == "best" or can_hold_back([self.train.fit(choice.spec) for choice in entrants])
        return judged and enough_steps([choice.steps for choice in entrants])

    def _finished(
        self, best: PlannedSize, spec: AnySpec | None, minutes: float, started: float, racing: int
    ) -> PlannedTraining:
        """The training of a choice, for the time that is left if it wins against all that are `racing`."""
        lost = 60 * minutes * losers_share(racing)
        final = self._final_seconds(best, minutes)
        left = max(LEAST_SECONDS, 60 * minutes - (self.clock() - started) - final - lost)
        seconds = (1 + EVALUATION_SHARE) * best.timing.seconds
        least = self._configure(best.size, spec, 1.0)[1].least_steps
        best = replace(best, steps=max(1, least, min(int(left / seconds), best.most_steps)))
        epochs = best.steps * best.batch / max(1, self.train.tokens)
        chosen, options = self._configure(best.size, spec, epochs)
        if options.uses_bf16(self.device) and not best.timing.half:
            options = options.replace(precision="float32")  # measured to be faster
        before = self.clock() - started
        plan = self._plan(chosen, options, best.steps, best.batch, best.timing.threads).replace(
            minutes=minutes,
            before=before,
            seconds=before + best.steps * seconds + final + lost,
            step_seconds=best.timing.seconds,
            most_steps=max(least, best.most_steps),
            final_seconds=self._slow_seconds(minutes),
            regularize=spec is None and not self._gives_regularization,
            held_back_until=race_steps(racing, best.steps) if options.weights == "last" else 0,
        )
        size = {"width": best.size.width, "layers": best.size.layers, "expected": round(best.loss, 4)}
        return PlannedTraining(chosen, options, plan, RaceEntrant(**size, parameters=plan.parameters, batch=plan.batch))

    @property
    def _gives_regularization(self) -> bool:
        """Whether the user has set dropout or weight decay."""
        names = [name.rpartition(".")[2] for name in (*self.model_changes, *self.training_changes)]
        return "dropout" in names or "weight_decay" in names

    def _describe(self, choice: PlannedSize) -> Tree:
        """A size that was looked at, as plan.json has it."""
        return {
            "parameters": self.models.cost(choice.spec).parameters,
            "width": choice.size.width,
            "layers": choice.size.layers,
            "batch": choice.batch,
            "timed": choice.timed,
            "tokens_per_second": round(choice.timing.tokens_per_second),
            "steps": choice.steps,
            "expected": round(choice.loss, 4),
        }

    def _compiled_if_faster(
        self, best: PlannedSize, spec: AnySpec | None, seconds: float
    ) -> tuple[list[PlannedSize], bool]:
        """The choice, by compiled steps if more of them fit into these seconds."""
        chosen, options = self._configure(best.size, spec, 1.0)
        timing = self.timer.faster_compiled(chosen, options, best.batch, best.timing, seconds)
        return ([best], False) if timing is None else ([replace(best, timing=timing)], True)

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
        self, sizes: Sequence[Size | None], found: dict[Size | None, PlannedSize], budget: float, most: int
    ) -> int:
        """The best by expected loss that was not measured among the `most` best; -1 if all of these were.

        Speeds are scaled by FLOPs from measured ones.
        """
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
        ranked = sorted(range(len(sizes)), key=expected_losses.__getitem__)
        best = [ranked[number] for number in _different([sizes[place] for place in ranked])[:most]]
        return next((number for number in best if sizes[number] not in found), -1)

    def _expected(self, spec: AnySpec, tokens: float) -> float:
        return expected_loss(self.models.cost(spec).mixing, tokens, max(1, self.train.tokens))

    def _measure(
        self, size: Size | None, spec: AnySpec | None, budget: float, found: dict[Size | None, PlannedSize]
    ) -> PlannedSize:
        chosen, options = self._configure(size or Size(), spec, 1.0)
        tokens_per_second = max((choice.timing.tokens_per_second for choice in found.values()), default=4000.0)
        batch = options.batch or self._suitable_batch(size or Size(), tokens_per_second * budget)
        timing, timed = self.timer.fastest(chosen, options, batch), batch
        if options.batch is None:
            batch = self._suitable_batch(size or Size(), timing.tokens_per_second * budget)
        if not 0.4 < batch / timed < 2.5:
            timing, timed = self.timer.fastest(chosen, options, batch, timing), batch
        return self._planned(size or Size(), chosen, batch, timing.scaled(batch / timed), budget)

    def _suitable_batch(self, size: Size, tokens: float) -> int:
        """Tokens per step for a training on so many tokens, no more than the task finds good."""
        return min(suitable_batch(tokens), self.task.recipe(size, 1.0).most_batch or BATCHES[-1])

    def _extrapolate(self, size: Size | None, budget: float, found: dict[Size | None, PlannedSize]) -> PlannedSize:
        """A size that was not measured: its time per token is that of the nearest one, scaled by FLOPs."""
        near = _nearest(size, found)
        chosen, options = self._configure(size or Size(), None, 1.0)
        timing = replace(near.timing, seconds=near.timing.seconds * _flops(chosen) / _flops(near.spec))
        batch = options.batch or self._suitable_batch(size or Size(), timing.tokens_per_second * budget)
        planned = self._planned(size or Size(), chosen, batch, timing.scaled(batch / near.batch), budget)
        return replace(planned, timed=False)

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


def _different(sizes: Sequence[Size | None]) -> list[int]:
    """The places of sizes without those that have the width and layers of an earlier one."""
    shapes = [None if size is None else (size.width, size.layers) for size in sizes]
    return [place for place, shape in enumerate(shapes) if shape not in shapes[:place]]


def _nearest(size: Size | None, found: dict[Size | None, PlannedSize]) -> PlannedSize:
    """The measured size whose blocks have the most similar number of weights."""
    return found[min(found, key=lambda other: abs(math.log(_weight(other) / _weight(size))))]


def _weight(size: Size | None) -> float:
    return 1.0 if size is None else float(size.width**2 * size.layers)


def _flops(spec: AnySpec) -> float:
    return float(max(1, estimate(spec).flops_per_token))
