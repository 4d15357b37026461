"""Observations: an input shown to a run under watch, with labels for its tokens, and what the model said of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from weft.foundation.errors import WeftError
from weft.inspection.analysis.alignment import Gold
from weft.inspection.pictures.inputs import LookInput
from weft.inspection.recording.attention_records import Kind, Rows
from weft.inspection.recording.calls import TextSide
from weft.inspection.recording.watch import Seen, watch
from weft.tasks.task import Task

CLASS_TOKEN = "[class]"
SHOWN = 90  # letters of a title


@dataclass(frozen=True)
class Observation:
    """One text (or image, or series) as a model saw it.

    `picture` names the task picture that draws it, if there is one. `tokens` label what was read on the side that
    answers, `source` what the encoder read, `written` what each row wrote. `said` is the answer in words, `shares`
    probabilities by name, `tags` an answer per token with its probability ("" for a token that has none: the later
    pieces of a word). `links`: for each token written, the source tokens that it truly comes from. `repeatable`: what
    was recorded is all that it takes to run the model again.
    """

    seen: Seen
    picture: str | None
    name: str
    tokens: tuple[str, ...]
    source: tuple[str, ...] = ()
    written: tuple[str, ...] = ()
    said: str = ""
    shares: Mapping[str, float] = field(default_factory=dict)
    tags: tuple[tuple[str, float], ...] = ()
    truth: Any = None
    links: Gold | None = None
    left_out: tuple[str, ...] = ()
    repeatable: bool = True
    call: int = -1
    batch: int = 0

    @property
    def run(self) -> Any:
        """The Run or module that was watched."""
        return self.seen.subject

    @property
    def model(self) -> nn.Module:
        """What is called: a model of Weft's, or a module of the user's own with the interface of one."""
        return self.run if isinstance(self.run, nn.Module) else self.run.module

    @property
    def task(self) -> Task | None:
        """The task, where a Run was watched."""
        return getattr(self.run, "task", None)

    @property
    def generates(self) -> bool:
        """Whether the answer is a text, written token by token."""
        return self.task is not None and self.task.generates

    @property
    def continues_input(self) -> bool:
        """Whether the answer goes on from the input: a language model."""
        return self.task is not None and self.task.continues_input

    @property
    def classifies(self) -> bool:
        """Whether the model chooses among classes, for the whole input or for each token."""
        spec = getattr(self.seen.module, "spec", None)
        return any(getattr(part, "classes", None) is not None for part in (spec, getattr(spec, "output", None)))

    @property
    def pool(self) -> str | None:
        """How the model sums its tokens up: first (class token), mean, last; None where each has its own answer."""
        spec = getattr(self.seen.module, "spec", None)
        output = getattr(spec, "output", None)
        if getattr(output, "EACH_TOKEN", False):
            return None
        found = next(filter(None, (getattr(owner, "pool", None) for owner in (self.task, output, spec))), None)
        return "first" if found == "distilled" else found

    def labels(self, kind: Kind) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Labels of rows and columns of the maps of one kind."""
        _, _, T, S = self.sizes(-1, kind)
        if kind == "encoder":
            return fitted(self.source or self.tokens, T), fitted(self.source or self.tokens, S)
        if kind in ("cross", "alignment"):
            return fitted(self.written or self.tokens, T), fitted(self.source, S)
        return fitted(self.tokens, T), fitted(self.tokens, S)

    @property
    def kinds(self) -> list[Kind]:
        """The kinds of attention that there are."""
        return self.seen.call(self.call).kinds

    def layers(self, kind: Kind) -> list[int]:
        """The layers that have attention of a kind."""
        return self.seen.call(self.call).layers(kind)

    def sizes(self, layer: int, kind: Kind) -> tuple[int, int, int, int]:
        """(B, H, T, S)."""
        return self.seen.sizes(layer, kind, self.call, self.batch)

    def attention(self, layer: int, kind: Kind, rows: Rows = None, batch: int | None = None) -> Tensor:
        """Weights of all heads, [H, rows, S]; one row as an index leaves its axis out."""
        return self.seen.attention(layer, None, rows, self.batch if batch is None else batch, kind, self.call)

    def scores(self, layer: int, kind: Kind, rows: Rows = None) -> Tensor:
        """What goes into the softmax, of the same shape."""
        return self.seen.scores(layer, None, rows, self.batch, kind, self.call)

    def vectors(self, layer: int, kind: Kind) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values of all heads."""
        return self.seen.vectors(layer, self.batch, kind, self.call)

    def inputs(self, of: TextSide = "target") -> dict[str, Tensor]:
        """What went into the embeddings, by their paths."""
        return self.seen.inputs(self.batch, self.call, of)


@dataclass(frozen=True)
class ImageObservation(Observation):
    """An image [height, width, 3], cut into a grid of patches whose first is key number `first`."""

    pixels: NDArray[np.uint8] = field(default_factory=lambda: np.zeros((1, 1, 3), np.uint8))
    grid: tuple[int, int] = (1, 1)
    first: int = 0


def fitted(tokens: Sequence[str], count: int) -> tuple[str, ...]:
    """Labels for so many tokens: one more than given begins with the class token; others are numbered."""
    given = tuple(tokens)
    if len(given) == count:
        return given
    if len(given) == count - 1 and given:
        return (CLASS_TOKEN, *given)
    if len(given) > count:
        return given[:count]
    return (*given, *map(str, range(len(given), count)))


def watched(run: Any, given: LookInput, how: dict[str, Any]) -> tuple[Seen, Any]:
    """What was seen while a run answered one input, and the answer."""
    with watch(run, keep=None) as seen:
        answers = run.answer([given.value], **how)
    if len(answers) != 1:
        raise WeftError(f"{given.name} holds {len(answers)} inputs: look at one of them at a time")
    return seen, answers[0]


def shortened(text: str, most: int = SHOWN) -> str:
    """The text in one line, cut after so many letters."""
    line = " ".join(text.split())
    return line if len(line) <= most else line[: most - 1] + "…"


def class_tokens(count: int) -> tuple[str, ...]:
    """What stands before an image's patches: the class token, and registers."""
    return (CLASS_TOKEN, *(f"[register {number}]" for number in range(count - 1)))[:count]
