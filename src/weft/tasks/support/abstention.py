"""Abstaining: an answer whose probability is too small is withheld, one of a class or of each word by itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from weft.foundation.errors import WeftError
from weft.tasks.task import Answer, Task

ABSTAINS = "abstains"


def expect_threshold(least: Any) -> float:
    """The same number, if it is a probability between 0 and 1."""
    if isinstance(least, bool) or not isinstance(least, int | float) or not 0 < least < 1:
        raise WeftError(f"abstain {least!r} is no probability: choose a number between 0 and 1, such as 0.8")
    return float(least)


def expect_probabilities(task: Task, labels: Sequence[str] = ()) -> None:
    """Refuse a task whose answers have no probability: neither are there classes, nor were `labels` given."""
    if task.answers is None and not labels:
        raise WeftError(
            f"a run of task {task.name} does not choose among classes, so its answers have no probability to abstain "
            "by: leave abstain out"
        )


def withhold(answer: Answer, least: float) -> Answer:
    """The answer with "abstains" in place of what is less probable than `least`; the probabilities stay."""
    shares = answer.more.get("probabilities")
    if isinstance(answer.output, list) and isinstance(shares, list):
        pairs = zip(answer.output, map(_largest, shares), strict=True)
        return replace(answer, output=[said if share >= least else ABSTAINS for said, share in pairs])
    return answer if _largest(shares) >= least else replace(answer, output=ABSTAINS)


def _largest(shares: Any) -> float:
    return max(shares.values()) if isinstance(shares, dict) else float(shares)
