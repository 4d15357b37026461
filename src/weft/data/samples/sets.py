"""Sets: a question about a multiset of numbers, whose answer does not depend on the order in which they are written."""

from __future__ import annotations

import random
from collections import Counter

from weft.data.samples.sample_definition import (
    ReferenceScore,
    Sample,
    draw_distinct,
    python_generator,
    validation_size,
)

QUESTIONS = ("maximum", "mode", "sum")
COUNT, LARGEST, LARGEST_SUM = 6, 9, 44


def sets(seed: int, size: int) -> Sample[tuple[tuple[str, str], ...]]:
    """Six numbers from 0 to 9 and what is asked of them: "sum 3 7 3 0 1 1", labeled 15; (text, label).

    Asked for are their maximum, their mode (the most frequent one, where there is one) or their sum. No multiset of the
    training part is in the validation part, in whatever order.
    """
    choose = python_generator(seed, "sets")
    drawn = draw_distinct("sets", size + validation_size(size), lambda: _question(choose))
    rows = [_written(choose, question, numbers) for question, numbers in drawn]
    best = ReferenceScore("accuracy", 1.0, "by construction: maximum, mode and sum are functions of the numbers")
    shortcut = ReferenceScore(
        "accuracy", _blind(drawn[size:]), "without the numbers: the most frequent answer to each question (counting)"
    )
    classes = tuple(str(number) for number in range(LARGEST_SUM + 1))
    train, held = tuple(rows[:size]), tuple(rows[size:])
    return Sample("sets", "classification", train, held, best, shortcut, classes, ordered=False)


def answer_to(question: str, numbers: tuple[int, ...]) -> int:
    """What is asked for."""
    if question == "mode":
        return Counter(numbers).most_common(1)[0][0]
    return max(numbers) if question == "maximum" else sum(numbers)


def _question(choose: random.Random) -> tuple[str, tuple[int, ...]]:
    """A question and a multiset, its numbers in order, with a single mode or a sum that is not rare, if asked for."""
    question = choose.choice(QUESTIONS)
    while True:
        numbers = tuple(sorted(choose.randint(0, LARGEST) for _ in range(COUNT)))
        counts = sorted(Counter(numbers).values())
        several = len(counts) > 1 and counts[-1] == counts[-2]
        if not (question == "mode" and several) and not (question == "sum" and sum(numbers) > LARGEST_SUM):
            return question, numbers


def _written(choose: random.Random, question: str, numbers: tuple[int, ...]) -> tuple[str, str]:
    order = choose.sample(numbers, len(numbers))
    return f"{question} {' '.join(map(str, order))}", str(answer_to(question, numbers))


def _blind(drawn: list[tuple[str, tuple[int, ...]]]) -> float:
    """Accuracy of whoever reads the question alone."""
    answers = {question: Counter(answer_to(*row) for row in drawn if row[0] == question) for question in QUESTIONS}
    return sum(max(found.values()) for found in answers.values() if found) / len(drawn)
