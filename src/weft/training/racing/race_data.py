"""What entrants of a race are judged on: the validation data, or training data that are held back until it is over.

Whoever keeps the last weights (`training.weights=last`) has validation data that may choose nothing, a test set say.
Then every tenth training example is left out of the batches of the race's steps, and is learned from after it.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.tasks.task import Split

EVERY, FIRST = 10, 7  # examples 7, 17, 27, ... are held back
LEAST = 100  # examples to judge on


def can_hold_back(splits: Sequence[Split]) -> bool:
    """Whether entrants that read these splits can be judged on the same held-back examples, and on enough of them."""
    counts = {len(split) for split in splits}
    return len(counts) == 1 and counts.pop() >= EVERY * LEAST


def held_back(train: Split) -> Split:
    """The examples that are held back."""
    return train.pick(range(FIRST, len(train), EVERY))


def without_held_back(examples: Sequence[int]) -> Sequence[int]:
    """A batch without them; as it is if none would be left."""
    return [example for example in examples if example % EVERY != FIRST] or examples
