"""Budgets: a lesson runs in seconds (quick) or as long as its claim needs (full), by the variable WEFT_LESSONS.

Unset, a lesson is being read: the quick budget, and nothing is raised over an answer. Set to `quick` or `full`, it is
being built: solutions are checked; and in full, claims are asserted.
"""

from __future__ import annotations

import os
from typing import TypeVar

from weft.foundation.errors import WeftError

VARIABLE = "WEFT_LESSONS"
BUDGETS = ("quick", "full")

T = TypeVar("T")


def budget() -> str:
    """`quick` or `full`; `quick` where WEFT_LESSONS is not set."""
    found = os.environ.get(VARIABLE) or "quick"
    if found not in BUDGETS:
        raise WeftError(f"{VARIABLE} is {found!r}: set it to quick or full, or leave it out")
    return found


def is_full() -> bool:
    """Whether this run may take the time that its claim needs."""
    return budget() == "full"


def is_checked() -> bool:
    """Whether the lesson is being built, so that a wrong solution is an error."""
    return bool(os.environ.get(VARIABLE)) and budget() in BUDGETS


def by_budget(quick: T, full: T) -> T:
    """A number of steps, a size, or anything else that differs between the budgets."""
    return full if is_full() else quick
