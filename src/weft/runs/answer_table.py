"""Answers as rows of a table: the input's own columns, then the prediction and the probabilities of classes.

In .jsonl an answer keeps its structure; in .csv and .tsv what is neither a text nor a number is written as JSON.
"""

from __future__ import annotations

import csv
import io
import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from weft.foundation.errors import WeftError
from weft.foundation.spec import Tree
from weft.tasks.task import Answer

PREDICTION, PROBABILITY = "prediction", "probability"


class AnswerFormat(ABC):
    """How rows of answers are written; `names` are the columns of the input, `columns` those of the answers."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(names)
        self.columns: tuple[str, ...] = ()

    def begin(self, answers: Sequence[Answer]) -> bytes:
        """What comes before all rows; the columns of answers follow from the first ones."""
        return b""

    @abstractmethod
    def rows(self, cells: Sequence[Sequence[str]], answers: Sequence[Answer]) -> bytes:
        """Rows of inputs with their answers."""


class JsonAnswers(AnswerFormat):
    """One JSON object per answer."""

    def rows(self, cells: Sequence[Sequence[str]], answers: Sequence[Answer]) -> bytes:
        trees = [
            {**dict(zip(self.names, row, strict=True)), PREDICTION: answer.output, **answer.more}
            for row, answer in zip(cells, answers, strict=True)
        ]
        return "".join(json.dumps(tree, ensure_ascii=False) + "\n" for tree in trees).encode()


class TableAnswers(AnswerFormat):
    """A header, and a row per answer, or per step of a forecast."""

    def begin(self, answers: Sequence[Answer]) -> bytes:
        self.columns = tuple(answer_rows(answers[0])[0])
        taken = set(self.names)
        return self.line([*self.names, *(f"{name}_of_run" if name in taken else name for name in self.columns)])

    def rows(self, cells: Sequence[Sequence[str]], answers: Sequence[Answer]) -> bytes:
        return b"".join(
            self.line([*row, *(_cell(found.get(name, "")) for name in self.columns)])
            for row, answer in zip(cells, answers, strict=True)
            for found in answer_rows(answer)
        )

    @abstractmethod
    def line(self, cells: Sequence[str]) -> bytes:
        """One row as a line of the file."""


class CsvAnswers(TableAnswers):
    """Commas between cells, quotes where a cell needs them."""

    def line(self, cells: Sequence[str]) -> bytes:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerow(cells)
        return text.getvalue().encode()


class TsvAnswers(TableAnswers):
    """Tabs between cells; in a cell, tabs and line ends become spaces, for the format has no way to write them."""

    def line(self, cells: Sequence[str]) -> bytes:
        return ("\t".join(cell.translate({9: " ", 10: " ", 13: " "}) for cell in cells) + "\n").encode()


FORMATS: dict[str, type[AnswerFormat]] = {".csv": CsvAnswers, ".tsv": TsvAnswers, ".jsonl": JsonAnswers}


def answer_format(out: Path) -> type[AnswerFormat]:
    """The format that a file's name asks for."""
    if out.suffix.lower() not in FORMATS:
        raise WeftError(f"answers are not written as {out.name}: choose a name that ends in {' or '.join(FORMATS)}")
    return FORMATS[out.suffix.lower()]


def answer_rows(answer: Answer) -> list[Tree]:
    """The columns of one answer; a forecast has a row per step, with the ends of its band."""
    if isinstance(answer.output, dict):
        columns = dict(answer.output)
        for end in ("low", "high"):
            columns |= {f"{name}_{end}": values for name, values in answer.more.get(end, {}).items()}
        steps = len(next(iter(answer.output.values())))
        return [{"step": step + 1, **{name: values[step] for name, values in columns.items()}} for step in range(steps)]
    found: Tree = {PREDICTION: answer.output}
    shares = answer.more.get("probabilities")
    if isinstance(shares, dict):
        found |= {f"{PROBABILITY}_{name}": share for name, share in shares.items()}
    elif shares is not None:
        found |= {"tokens": answer.more.get("tokens"), "probabilities": shares}
    return [found]


def _cell(value: Any) -> str:
    """Texts as they are; lists of words without blanks with blanks between them; all else as JSON."""
    if isinstance(value, str):
        return value
    if isinstance(value, list) and value and all(isinstance(one, str) and one and " " not in one for one in value):
        return " ".join(value)
    return json.dumps(value, ensure_ascii=False)
