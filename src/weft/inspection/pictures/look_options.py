"""What users ask of `weft look` and `seen.show()`: a kind of picture, and what it shows first."""

from __future__ import annotations

from dataclasses import dataclass

from weft.foundation.errors import WeftError

STEPS = 200


@dataclass(frozen=True)
class LookOptions:
    """`kind` of picture (the task's own if left out), and what is shown first: layer, head, row, a pair of words.

    `row` is a token or its number. `explain` adds one attention output in all its numbers. `steps` is the number of
    training steps for kinds that train a small model.
    """

    kind: str | None = None
    layer: int | None = None
    head: int | None = None
    row: str | None = None
    pair: tuple[str, str] | None = None
    explain: bool = False
    steps: int = STEPS

    @property
    def names_a_place(self) -> bool:
        """Whether a layer, a head or a row is asked for."""
        return any(place is not None for place in (self.layer, self.head, self.row))


def parse_pair(text: str | None) -> tuple[str, str] | None:
    """`a,b` as the command line writes two words."""
    if text is None:
        return None
    words = [word.strip() for word in text.split(",")]
    if len(words) != 2 or not all(words):
        raise WeftError(f"--pair {text!r} is not a pair of words: give two with a comma, such as not,terrible")
    return words[0], words[1]
