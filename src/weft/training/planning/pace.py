"""How long steps, evaluations and checkpoints take: measured while a training runs, by a clock that can be replaced."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable

from weft.foundation.spec import Tree
from weft.training.planning.plan import Costs, TrainingPlan

Clock = Callable[[], float]  # seconds, since any moment

WINDOW = 0.05  # of the time: how far back steps count
LEAST_STEPS = 5  # of the window, however long they take
UNTIMED_WINDOW = 10.0  # seconds
PAUSE = 0.02  # of the time: a single step that took longer, and PAUSE_STEPS times as long as others, was a pause
PAUSE_STEPS = 8
FORWARD = 1 / 3  # of a step's time
SCORING = 1.3  # of an evaluation's time per token, for the metrics at the end
FEW = 0.4  # error of the time of a single step that was measured, as a share
RECENT = 4  # evaluations and checkpoints that count


class Pace:
    """The times of recent steps, evaluations and checkpoints.

    A machine that becomes slower makes evaluations slower too: their times are kept in steps. The first step of a
    process is left out, because it loads and allocates; so is a pause, such as of a laptop that slept.
    """

    def __init__(self, plan: TrainingPlan) -> None:
        self.budget = plan.budget
        self.window = WINDOW * plan.budget if plan.budget else UNTIMED_WINDOW
        self.planned = plan.step_seconds or 0.0
        self.looked_at = min(plan.evaluate_tokens, plan.held_out or plan.evaluate_tokens)
        self._guess = self._scoring = FORWARD * self.looked_at / plan.batch
        self._evaluations: deque[float] = deque(maxlen=RECENT)
        self._checkpoints: deque[float] = deque(maxlen=RECENT)
        self._steps: deque[float] = deque()
        self._sum = 0.0
        self._warm = self._paused = False

    @property
    def step(self) -> float:
        """The mean time of recent steps; the planned one before any was measured."""
        return self._sum / len(self._steps) if self._steps else self.planned

    def add_step(self, seconds: float) -> None:
        """A step took so long."""
        if not self._warm:
            self._warm = True
            return
        pause = self.budget and seconds > max(PAUSE * self.budget, PAUSE_STEPS * self.step)
        if pause and not self._paused and self.step > 0:  # two in a row are a slow machine
            self._paused = True
            return
        self._paused = False
        self._steps.append(seconds)
        self._sum += seconds
        while len(self._steps) > LEAST_STEPS and self._sum - self._steps[0] >= self.window:
            self._sum -= self._steps.popleft()

    def add_evaluation(self, seconds: float, scoring: float) -> None:
        """An evaluation took so long, `scoring` of it for the loss."""
        step = max(self.step, 1e-9)
        self._evaluations.append(seconds / step)
        self._scoring = scoring / step

    def add_checkpoint(self, seconds: float) -> None:
        """A checkpoint took so long."""
        self._checkpoints.append(seconds)

    def costs(self, plan: TrainingPlan) -> Costs:
        """What to expect of the rest of the training."""
        step, count = max(self.step, 1e-9), len(self._steps)
        spread = math.sqrt(math.fsum((seconds - step) ** 2 for seconds in self._steps) / max(1, count)) / step
        final = SCORING * self._scoring * step * plan.final_tokens / max(1, self.looked_at) + plan.final_seconds
        return Costs(
            step=step,
            error=1.0 if not count else spread / math.sqrt(count) + FEW / count,
            evaluation=_mean(self._evaluations, self._guess) * step,
            checkpoint=_mean(self._checkpoints, 0.0),
            final=final,
        )

    def facts(self) -> Tree:
        """What a training state keeps."""
        return {
            "step": self.step,
            "evaluation": _mean(self._evaluations, self._guess),
            "scoring": self._scoring,
            "checkpoint": _mean(self._checkpoints, 0.0),
        }

    def restore(self, facts: Tree) -> None:
        """Begin with what was measured before."""
        self.planned, self._scoring = float(facts["step"]), float(facts["scoring"])
        self._evaluations.append(float(facts["evaluation"]))
        self._checkpoints.append(float(facts["checkpoint"]))


def _mean(numbers: deque[float], otherwise: float) -> float:
    return sum(numbers) / len(numbers) if numbers else otherwise
