"""What tasks of imported text models share: they are used and evaluated, not trained; a frame stands around each text.

A run of such a task may be trained on as one of another, with its tokenizer and frame.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from weft.data.batching import pad_rows
from weft.data.tokenizers.tokenizer import Tokenizer
from weft.foundation.errors import WeftError
from weft.foundation.spec import Tree
from weft.models.build import AnySpec
from weft.models.encoder import EncoderSpec
from weft.tasks.support.inputs.input_rows import TextInputs
from weft.tasks.support.language.prompt_format import Frame
from weft.tasks.task import PreparedData, Size, Task


class ImportedTextTask(TextInputs, Task):
    """A task whose runs are imported: `tokenizer` and `frame` make a text at most `length` tokens."""

    families = ("encoder",)
    trainable = False

    tokenizer: Tokenizer

    def __init__(self, options: Any, tokenizer: Tokenizer, frame: Frame, length: int) -> None:
        self.options, self.tokenizer, self.frame, self.length = options, tokenizer, frame, length

    @classmethod
    def _untrained(cls) -> WeftError:
        return WeftError(f"models of task {cls.name} are imported, not trained here: weft import FOLDER --out RUN")

    @classmethod
    def prepare(cls, paths: Sequence[str], options: Any, seed: int, cache: Path, known: Any = None) -> PreparedData:
        raise cls._untrained()

    def default_model(self, size: Size) -> EncoderSpec:
        raise self._untrained()

    def fit(self, spec: AnySpec) -> EncoderSpec:
        raise self._untrained()


def expect_tokenizer(tokenizer: Tokenizer | None) -> Tokenizer:
    """The tokenizer of a run, which an imported one always has."""
    if tokenizer is None:
        raise WeftError("this run has no tokenizer.json: restore the file or import it again")
    return tokenizer


def padded_inputs(
    rows: Sequence[Sequence[int]], pad: int, segments: Sequence[Sequence[int]] | None = None
) -> dict[str, Tensor]:
    """What an encoder is called with: rows of tokens, padded on the right, which of them are real, and segments."""
    padded = pad_rows(rows, pad)
    real = torch.arange(padded.tokens.shape[1]) < padded.lengths[:, None]
    found = {"tokens": padded.tokens, "mask": real}
    return found if segments is None else found | {"segments": pad_rows(segments, 0).tokens}


@dataclass(frozen=True)
class PairFrame:
    """How two texts are read as one: ids between them, and the segment of the second (BERT's sentence B)."""

    between: tuple[int, ...]
    segment: int

    @classmethod
    def of(cls, facts: Tree) -> PairFrame | None:
        """As facts of a run name it; None of a model that reads one text."""
        return cls(tuple(facts["between"]), int(facts["segment"])) if "between" in facts else None

    def to_tree(self) -> Tree:
        return {"between": list(self.between), "segment": self.segment}

    def put(self, frame: Frame, first: Sequence[int], second: Sequence[int], most: int) -> tuple[list[int], list[int]]:
        """(ids, segments) of a pair; if it is longer than `most`, the longer text loses its end, token by token."""
        room = max(0, most - len(frame.before) - len(self.between) - len(frame.after))
        short = min(len(first), len(second))
        if len(first) + len(second) > room:
            kept = min(short, room // 2)
            # Of two long texts the longer one keeps the odd token, as in the library tokenizers (longest_first).
            one, other = (kept, room - kept) if len(first) <= len(second) else (room - kept, kept)
            first, second = first[:one], second[:other]
        ids = [*frame.before, *first, *self.between, *second, *frame.after]
        start = len(frame.before) + len(first) + len(self.between)
        return ids, [0] * start + [self.segment] * (len(ids) - start)
