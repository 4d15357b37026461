"""Answers as lines of text: labels with their probability, tags with their words."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from weft.tasks.task import Answer

ABSTAINS = "abstains"  # as `weft.tasks.support.abstention` has it, which would load torch


def describe_answer(answer: Answer) -> str | None:
    """A label with its probability, or words with their tags; None for other answers.

    Of an answer that is withheld, the likeliest label stands with its probability.
    """
    shares, words = answer.more.get("probabilities"), answer.more.get("tokens")
    if words is None and answer.output == ABSTAINS and isinstance(shares, dict):
        best = max(shares, key=shares.__getitem__)
        return f"{ABSTAINS} ({best} {shares[best]:.1%})"
    if words is None and isinstance(answer.output, str) and isinstance(shares, dict) and answer.output in shares:
        return f"{answer.output} ({shares[answer.output]:.1%})"
    if isinstance(answer.output, list) and isinstance(words, list) and len(words) == len(answer.output) > 0:
        return " ".join(f"{word}/{tag}" for word, tag in zip(words, answer.output, strict=True))
    return None
