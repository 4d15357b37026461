"""Errors that a user can cause: one sentence that names the thing, the sizes and the remedy."""

import re
from typing import ClassVar

LONGEST_WORD, LONGEST_SENTENCE = 300, 900  # characters: a file that is quoted can hold names of any length
_LONG_WORD = re.compile(rf"\S{{{LONGEST_WORD + 1},}}")


class WeftError(Exception):
    """Anything a user can cause and cure; the command line prints it as one sentence and exits with 2.

    What is too long to be read is shortened in its middle: the remedy stands at the end.
    """

    longest: ClassVar[int] = LONGEST_SENTENCE

    def __init__(self, sentence: object = "", *more: object) -> None:
        super().__init__(_shortened(sentence, self.longest) if isinstance(sentence, str) else sentence, *more)


def _shortened(sentence: str, longest: int) -> str:
    if "\n" in sentence and longest == LONGEST_SENTENCE:  # a library's message
        sentence = " ".join(sentence.split())
    sentence = _LONG_WORD.sub(lambda found: f"{found[0][:200]}...{found[0][-60:]}", sentence)
    return sentence if len(sentence) <= longest else f"{sentence[: longest - 305]} ... {sentence[-300:]}"


class SpecError(WeftError):
    """A spec with an unknown, missing, ill-typed or contradictory field."""


class ShapeError(WeftError):
    """A tensor whose axes do not fit the part it was given to."""


class LengthError(WeftError):
    """A sequence longer than the positions, the state or the declared length can hold."""
