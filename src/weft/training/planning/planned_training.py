"""A training before its first step: model, options and plan, as the planner makes them and all processes get them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from weft.foundation.spec import Tree
from weft.models.build import AnySpec, read_spec
from weft.training.planning.plan import TrainingPlan
from weft.training.racing.race_record import RaceEntrant
from weft.training.training_spec import TrainingSpec


@dataclass(frozen=True)
class PlannedTraining:
    """The model's spec, how it is trained, and for how long; `entrant` is what a race of sizes knows of it."""

    spec: AnySpec
    options: TrainingSpec
    plan: TrainingPlan
    entrant: RaceEntrant | None = None

    def with_plan(self, plan: TrainingPlan) -> PlannedTraining:
        """The same by another plan."""
        return replace(self, plan=plan)

    def to_tree(self) -> Tree:
        """As plain JSON."""
        return {
            "model": self.spec.to_tree(),
            "training": self.options.to_tree(),
            "plan": self.plan.to_tree(),
            "entrant": None if self.entrant is None else self.entrant.to_tree(),
        }

    @classmethod
    def from_tree(cls, tree: Tree) -> PlannedTraining:
        """The inverse of `to_tree`."""
        entrant = None if tree["entrant"] is None else RaceEntrant(**tree["entrant"])
        plan = TrainingPlan.from_tree(tree["plan"])
        return cls(read_spec(tree["model"]), TrainingSpec(**tree["training"]), plan, entrant)
