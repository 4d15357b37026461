"""Checked questions: an answer is judged by running code, never by comparing it with a stored sentence.

The questions of lesson 7 live in `answers/lesson_07.py`, as a dictionary QUESTIONS of `Question` by number ("7.1").
"""

from __future__ import annotations

import importlib
import importlib.util
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from weft.foundation.errors import WeftError
from weft.lessons.budgets import is_checked
from weft.lessons.claims import LessonError

Judge = Callable[[Any], str]


@dataclass(frozen=True)
class Question:
    """`judge` runs code and returns "" for a right answer, else what to think about.

    `solution` must be accepted, and each of `wrong` refused, whenever the lesson is built. Answers may be functions.
    """

    judge: Judge
    solution: Any
    wrong: tuple[Any, ...]


def check(number: str, answer: object = ...) -> None:
    """Say whether the answer to a question is right, or what to think about; `...` is not an answer yet.

    While lessons are built, the built-in solution is judged as well, and some wrong answers.
    """
    question = find_question(number)
    if is_checked():
        prove_question(number, question)
    if answer is ...:
        print(f"Question {number}: put your answer in place of the three dots, and run this cell again.")
        return
    thought = thought_about(question, answer)
    print(f"Question {number}: {f'not yet. {thought}' if thought else 'right.'}")
    if thought and is_checked():
        raise LessonError(f"lesson {number} gives a wrong answer to its own question: {thought}")


def solution(number: str) -> Any:
    """The built-in answer to a question: for lecturers, and for after you have tried."""
    return find_question(number).solution


def thought_about(question: Question, answer: object) -> str:
    """ "" if the answer is right, else what to think about; an answer that cannot be judged is not right."""
    try:
        return question.judge(answer)
    except Exception as error:  # a reader's function may do anything
        return f"Judging it ended in {type(error).__name__}: {error}. Is it of the kind that the question asks for?"


def prove_question(number: str, question: Question) -> None:
    """Raise unless the solution is accepted and each wrong answer refused."""
    thought = thought_about(question, question.solution)
    if thought:
        raise LessonError(f"the solution of question {number} is refused: {thought}")
    if not question.wrong:
        raise LessonError(f"question {number} names no wrong answer: give some, so that its judge is tested")
    for one in question.wrong:
        if not thought_about(question, one):
            raise LessonError(f"question {number} accepts the wrong answer {one!r}")


def find_question(number: str) -> Question:
    """The question of this number, such as "7.1"."""
    if not re.fullmatch(r"\d{1,2}\.\d", number):
        raise WeftError(f"{number!r} is not the number of a question: write it as '7.1'")
    name = f"weft.lessons.answers.lesson_{int(number.split('.')[0]):02d}"
    found: Mapping[str, Question] = {}
    if importlib.util.find_spec(name) is not None:
        found = importlib.import_module(name).QUESTIONS
    if number not in found:
        raise WeftError(
            f"there is no question {number}: lesson {number.split('.')[0]} has {', '.join(found) or 'none'}"
        )
    return found[number]


def expect_number(truth: Callable[[], float], hint: str, tolerance: float = 0.0) -> Judge:
    """A judge for numbers: within `tolerance` (a share of the truth) of what `truth` computes."""

    def judge(answer: Any) -> str:
        right = truth()
        return "" if abs(float(answer) - right) <= tolerance * abs(right) else hint

    return judge


def expect_choice(truth: Callable[[], str], hint: str) -> Judge:
    """A judge for one word out of several: the one that `truth` finds by running code."""

    def judge(answer: Any) -> str:
        return "" if str(answer).strip().lower() == truth() else hint

    return judge
