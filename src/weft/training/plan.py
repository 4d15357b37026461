"""The frozen plan of a training: written before the first step, followed by a resumed run."""

from __future__ import annotations

from typing import Any

from pydantic import NonNegativeFloat, NonNegativeInt, PositiveInt

from weft.foundation.spec import Spec

SLOWDOWN = 1.15  # steps that take longer than planned by more than this factor shorten the plan


class PlanRevision(Spec):
    """The one time a plan was shortened: at step `at` to `steps` steps, because they took `slower` times as long."""

    at: PositiveInt
    steps: PositiveInt
    slower: float


class TrainingPlan(Spec):
    """The number of steps decides when training ends; seconds and memory were expected when the plan was made.

    An evaluation takes `evaluate_tokens` of the `held_out` validation tokens, the last one all. `before` is the time
    in seconds that reading the data and measuring took; `step_seconds` include a share for evaluations.
    """

    steps: PositiveInt
    least_steps: PositiveInt = 1
    batch: PositiveInt
    evaluate_every: PositiveInt
    evaluate_tokens: PositiveInt
    held_out: NonNegativeInt = 0
    checkpoint_every: PositiveInt
    threads: PositiveInt
    parameters: NonNegativeInt
    tokens: NonNegativeInt
    epochs: NonNegativeFloat
    memory: NonNegativeInt
    minutes: NonNegativeFloat | None = None
    before: NonNegativeFloat = 0.0
    seconds: NonNegativeFloat | None = None
    step_seconds: NonNegativeFloat | None = None
    tried: tuple[dict[str, Any], ...] = ()
    shortened: PlanRevision | None = None

    def steps_at(self, step: int) -> int:
        """The number of steps of the whole training, as planned at this step."""
        return self.shortened.steps if self.shortened is not None and step >= self.shortened.at else self.steps

    @property
    def last(self) -> int:
        """The number of steps of the whole training."""
        return self.steps if self.shortened is None else self.shortened.steps

    def shorten(self, step: int, seconds: float) -> TrainingPlan:
        """This plan, or a shorter one if the first `step` steps took clearly longer than planned; done at most once."""
        if self.shortened is not None or self.step_seconds is None or step < 1 or self.minutes is None:
            return self
        pace = seconds / step
        if pace <= SLOWDOWN * self.step_seconds:
            return self
        left = 60 * self.minutes - self.before - seconds
        steps = max(self.least_steps, step + 1, step + int(left / pace))
        if steps >= self.steps:
            return self
        return self.replace(shortened=PlanRevision(at=step, steps=steps, slower=pace / self.step_seconds))
