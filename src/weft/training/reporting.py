"""What a training reports while it runs: the command line prints it; library users may subclass Reporter."""

from __future__ import annotations

from dataclasses import dataclass

from weft.training.planning.plan import TrainingPlan


@dataclass(frozen=True)
class TrainingProgress:
    """After `step` of `steps` steps: mean loss since the last report, learning rate as a share of its peak, speed.

    `seconds` have passed, and about `seconds_left` remain.
    """

    step: int
    steps: int
    loss: float
    rate_share: float
    tokens_per_second: float
    seconds: float
    seconds_left: float


class Reporter:
    """Callbacks of a training. These do nothing; override those of interest."""

    def on_stage(self, stage: str) -> None:
        """A stage begins: reading the data, measuring the machine."""

    def on_model(self, description: str) -> None:
        """What the model that was chosen has beside the plain one of its family."""

    def on_race(self, description: str) -> None:
        """Which of the sizes that raced goes on."""

    def on_plan(self, plan: TrainingPlan, description: str) -> None:
        """The plan is final."""

    def on_step(self, progress: TrainingProgress) -> None:
        """Some steps are done; called at most a few times per second."""

    def on_evaluation(self, step: int, loss: float, best: bool) -> None:
        """The validation loss, and whether it is the best so far."""

    def on_preview(self, step: int, text: str) -> None:
        """An example of what the model can do by now."""

    def on_note(self, text: str) -> None:
        """Anything that users should know: a fallback, a revised plan."""
