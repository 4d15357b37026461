"""What a training tells while it runs; the command line draws it, a library user may listen."""

from __future__ import annotations

from dataclasses import dataclass

from weft.training.plan import TrainingPlan


@dataclass(frozen=True)
class TrainingProgress:
    """After `step` of `steps` steps: the mean loss since the last word, tokens a second, seconds gone and left."""

    step: int
    steps: int
    loss: float
    rate: float
    tokens_per_second: float
    seconds: float
    left: float


class Reporter:
    """Hears everything and says nothing; override what is of interest."""

    def on_stage(self, what: str) -> None:
        """A stage begins: reading, measuring the machine."""

    def on_plan(self, plan: TrainingPlan, words: str) -> None:
        """The plan is made and frozen."""

    def on_step(self, progress: TrainingProgress) -> None:
        """Some steps are done; several times a second at most."""

    def on_evaluation(self, step: int, loss: float, best: bool) -> None:
        """The loss on the held-out part."""

    def on_preview(self, step: int, text: str) -> None:
        """What the model does now."""

    def on_note(self, text: str) -> None:
        """Anything that users should know: a fallback, a shortened plan."""
