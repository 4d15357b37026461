"""Lessons: what the lessons in docs/lessons use: checked questions, embedded source, budgets, claims, notebooks.

from weft import lessons
lessons.source(scaled_dot)          # the lines of Weft that are the equation
lessons.check("1.2", my_answer)     # right, or what to think about
lessons.claim("...", accuracy > 0.9, f"accuracy {accuracy:.2f}")

- answers/: one file per lesson: its questions' solutions, and the code that judges an answer.
"""

import importlib
from typing import TYPE_CHECKING, Any

from weft.foundation.packages import open_lazily
from weft.lessons.budgets import by_budget, is_checked, is_full
from weft.lessons.checking import check, solution
from weft.lessons.claims import LessonError, claim
from weft.lessons.embedded_source import source
from weft.lessons.pictures import show

if TYPE_CHECKING:
    from weft.lessons.fitting import fit

__all__ = ["LessonError", "by_budget", "check", "claim", "fit", "is_checked", "is_full", "show", "solution", "source"]


def __getattr__(name: str) -> Any:
    """`fit` loads when it is first used: the rest does not need torch."""
    if name == "fit":
        return importlib.import_module("weft.lessons.fitting").fit
    return open_lazily(__name__)(name)
