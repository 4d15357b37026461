"""Claims: what a lesson says about the world, asserted where the budget is full, reported where it is quick."""

from __future__ import annotations

from weft.foundation.errors import WeftError
from weft.lessons.budgets import is_full


class LessonError(WeftError):
    """A lesson is wrong: a claim does not hold in the full budget, or a solution is refused by its own question."""


def claim(text: str, holds: bool, measured: str) -> None:
    """State what was measured, and whether the claim holds; in the full budget it must."""
    if is_full() and not holds:
        raise LessonError(f"the claim {text!r} does not hold: {measured}")
    verdict = "holds" if holds else "does not hold yet, in this reduced run"
    print(f"Claim: {text}\nMeasured: {measured}\nThe claim {verdict}.")
