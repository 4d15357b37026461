"""The time plan of a training: written before the first step, revised on record, followed by a resumed run.

A revision changes the number of steps, never what was done: the schedule goes on from the share that it has reached to
its end, so the learning rate makes no jump and still comes down to its last value. All of it is a function of the
revisions in plan.json, so a resumed run takes the same steps at the same rates.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from weft.foundation.spec import Spec, Tree, VersionedSpec
from weft.models.part_specs import Share
from weft.training.pretrained.head_record import HeadRecord
from weft.training.racing.race_record import RaceRecord

END_TOLERANCE = 0.01  # of the time: an end that would be off by less is left as it is
TOLERANCE = 0.04  # of the time that is left: noise, long before the end
FINAL_SHARE = 0.03  # of the time, about, for metrics that are slow
LANDING = 0.03  # of the time, times the share still to do: for the rate to come down, even if the time is over
LEAST_SECONDS = 1.0  # the same, for times that reading and planning used up


@dataclass(frozen=True)
class Costs:
    """What a step, an evaluation, a checkpoint and the rest after the last step take, in seconds.

    `error` is that of a step's time, as a share of it.
    """

    step: float
    error: float
    evaluation: float
    checkpoint: float
    final: float


Reason = Literal["time", "regularized", "shortened"]


class PlanRevision(Spec):
    """At step `at`, after `seconds`, the plan got `steps` steps in all, because a step took `step_seconds`.

    `speed` is that as a share of the planned speed; `done` is the share of the schedule that was behind the training.
    For the other reasons see `gap`: "regularized" steps have `notches` of dropout and weight decay more than planned,
    and a plan that was "shortened" gets no longer again.
    """

    at: PositiveInt
    steps: PositiveInt
    done: Share
    speed: PositiveFloat | None = None
    step_seconds: NonNegativeFloat | None = None
    seconds: NonNegativeFloat | None = None
    reason: Reason = "time"
    notches: NonNegativeInt = 0


def _to_version_2(tree: Tree) -> Tree:
    """Version 1 was shortened at most once; its schedule then was that of a training as short from the start."""
    tree = dict(tree)
    old, planned = tree.pop("shortened", None), tree.get("step_seconds")
    if old is not None:
        seconds = None if planned is None else planned * old["slower"]
        revision = {"at": old["at"], "steps": old["steps"], "done": old["at"] / old["steps"]}
        tree["revisions"] = [revision | {"speed": 1 / old["slower"], "step_seconds": seconds}]
    return tree | {"final_tokens": tree.get("held_out", 0)}


class TrainingPlan(VersionedSpec):
    """The number of steps decides when training ends; seconds and memory were expected when the plan was made.

    `steps` are those of the first plan, `last` those after all `revisions`, which never exceed `most_steps`. An
    evaluation takes `evaluate_tokens` of the `held_out` validation tokens; after the last step `final_tokens` are
    scored, and slow metrics have `final_seconds`. `before` is the time in seconds until the first step; `step_seconds`
    are those of a step alone. `compiled` steps go through torch.compile. `regularize`: dropout
    and weight decay may be raised, because the user gave neither. `race`: how the size was chosen, where the
    formula's best ones raced; until step `held_back_until` the examples that it is judged on are not learned from.
    `head`: what was done with the last layer of a trained model.
    """

    VERSION: ClassVar[int] = 2
    MIGRATIONS: ClassVar[dict[int, Callable[[Tree], Tree]]] = {1: _to_version_2}
    version: int = 2

    steps: PositiveInt
    least_steps: PositiveInt = 1
    most_steps: PositiveInt | None = None
    batch: PositiveInt
    evaluate_every: PositiveInt
    evaluate_tokens: PositiveInt
    held_out: NonNegativeInt = 0
    final_tokens: NonNegativeInt = 0
    final_seconds: NonNegativeFloat = 0.0
    checkpoint_every: PositiveInt
    threads: PositiveInt
    compiled: bool = False
    parameters: NonNegativeInt
    tokens: NonNegativeInt
    epochs: NonNegativeFloat
    memory: NonNegativeInt
    minutes: NonNegativeFloat | None = None
    before: NonNegativeFloat = 0.0
    seconds: NonNegativeFloat | None = None
    step_seconds: NonNegativeFloat | None = None
    tried: tuple[dict[str, Any], ...] = ()
    revisions: tuple[PlanRevision, ...] = ()
    regularize: bool = False
    race: RaceRecord | None = None
    held_back_until: NonNegativeInt = 0
    head: HeadRecord | None = None

    @property
    def last(self) -> int:
        """The number of steps of the whole training; none where the last layer alone is fitted."""
        if self.head is not None and self.head.frozen:
            return 0
        return self.revisions[-1].steps if self.revisions else self.steps

    @property
    def race_steps(self) -> int:
        """The steps that were taken in a race, as the winner; 0 without one."""
        return 0 if self.race is None else self.race.entrants[self.race.winner].points[-1].tokens // self.batch

    @property
    def budget(self) -> float:
        """The time that was given, in seconds; 0 for a number of steps."""
        return 60 * (self.minutes or 0.0)

    def position(self, step: int) -> float:
        """Where in the schedule of `steps` steps the training is after `step` steps: at `step` itself if not revised.

        After a revision at step a with d = `done` and l = its steps: (d + (1 - d) (step - a) / (l - a)) steps.
        """
        for revision in reversed(self.revisions):
            if step >= revision.at:
                share = (step - revision.at) / max(1, revision.steps - revision.at)
                return (revision.done + (1 - revision.done) * share) * self.steps
        return step

    def notches(self, step: int) -> int:
        """How many notches of dropout and weight decay step `step` has more than planned."""
        return max([0, *(revision.notches for revision in self.revisions if step >= revision.at)])

    @property
    def limit(self) -> int | None:
        """The most steps that a revision may give."""
        limits = [revision.steps for revision in self.revisions if revision.reason == "shortened"]
        return min([*limits, *([] if self.most_steps is None else [self.most_steps])], default=None)

    def steps_that_fit(self, step: int, elapsed: float, costs: Costs) -> int:
        """The number of steps of a training that ends on time, as of this step, `elapsed` seconds after it was begun.

        As planned if that is near enough. Never fewer than `least_steps` or more than `most_steps`, and enough of them
        to come down from the current learning rate.
        """
        to_do = 1 - self.position(step) / self.steps
        left = self.budget - elapsed - costs.evaluation - costs.checkpoint - costs.final
        left = max(left, to_do * max(LEAST_SECONDS, LANDING * self.budget))
        planned = self.seconds_between(step, self.last, costs)
        near = max(END_TOLERANCE * self.budget, (TOLERANCE + 2 * costs.error) * left)
        if abs(planned - left) <= near:
            return self.last
        ends = range(step, step + int(left / costs.step) + 1)
        fitting = ends[bisect.bisect_right(ends, left, key=lambda end: self.seconds_between(step, end, costs)) - 1]
        steps = max(fitting, self.least_steps, step + 1)
        return steps if self.limit is None else max(step + 1, min(steps, self.limit))

    def seconds_between(self, step: int, end: int, costs: Costs) -> float:
        """The time from one step to another, with the evaluations and checkpoints on the way."""
        looks = max(0, end - 1) // self.evaluate_every - step // self.evaluate_every
        states = max(0, end - 1) // self.checkpoint_every - step // self.checkpoint_every
        return (end - step) * costs.step + max(0, looks) * costs.evaluation + max(0, states) * costs.checkpoint

    def revise(self, step: int, steps: int, elapsed: float, step_seconds: float) -> TrainingPlan:
        """This plan with `steps` steps from this step on, on record."""
        speed = None if not self.step_seconds else self.step_seconds / step_seconds
        return self._revised(step, steps, speed=speed, step_seconds=step_seconds, seconds=elapsed)

    def regularized(self, step: int) -> TrainingPlan:
        """This plan with one notch of dropout and weight decay more from this step on, on record."""
        return self._revised(step, self.last, reason="regularized", notches=self.notches(step) + 1)

    def shortened(self, step: int, steps: int, flat: float) -> TrainingPlan:
        """This plan with `steps` steps, on record; the schedule, flat until the share `flat`, goes on from there."""
        done = max(flat, self.position(step) / self.steps)
        return self._revised(step, steps, reason="shortened", done=done)

    def _revised(self, step: int, steps: int, **more: Any) -> TrainingPlan:
        given = {"done": self.position(step) / self.steps, "notches": self.notches(step), **more}
        revision = PlanRevision(at=step, steps=steps, **given)
        return self.replace(revisions=[*(made.to_tree() for made in self.revisions), revision.to_tree()])


def describe_revision(plan: TrainingPlan, before: int) -> str:
    """The newest revision in one line; the plan had `before` steps."""
    made = plan.revisions[-1]
    if made.reason != "time":
        raised = "dropout and weight decay are raised"
        done = raised if made.reason == "regularized" else f"the plan is shortened to {made.steps:,} steps"
        return f"step {made.at:,}: the training loss falls, the held-out loss does not: {done}"
    speed = "" if made.speed is None else f", {made.speed:.0%} of the planned speed"
    seconds = "" if made.step_seconds is None else f" (a step takes {made.step_seconds:.3g} s{speed})"
    longer = "lengthened" if made.steps > before else "shortened"
    return f"step {made.at:,}: the plan is {longer} from {before:,} to {made.steps:,} steps to end on time{seconds}"
