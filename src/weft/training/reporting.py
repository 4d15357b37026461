"""What a training tells while it runs; the command line draws it, a library user may listen."""

from __future__ import annotations

from dataclasses import dataclass

from weft.training.plan import TrainingPlan


@dataclass(frozen=True)
class Progress:
    """After `step` of `steps` steps: the mean loss since the last word, tokens a second, seconds gone and left."""

    step: int
    steps: int
    loss: float
    rate: float
    tokens_a_second: float
    seconds: float
    left: float


class Reporter:
    """Hears everything and says nothing; override what is of interest."""

    def began(self, what: str) -> None:
        """A stage begins: reading, measuring the machine."""

    def planned(self, plan: TrainingPlan, words: str) -> None:
        """The plan is made and frozen."""

    def stepped(self, progress: Progress) -> None:
        """Some steps are done; several times a second at most."""

    def evaluated(self, step: int, loss: float, best: bool) -> None:
        """The loss on the held-out part."""

    def previewed(self, step: int, text: str) -> None:
        """What the model does now."""

    def noted(self, text: str) -> None:
        """Anything that users should know: a fallback, a shortened plan."""
