"""Answers to a whole file of inputs, written into a file: in batches, so that memory is bounded, and resumable.

While it runs there are two files beside the one asked for: `answers.csv.partial`, the rows so far, and
`answers.csv.progress`, which says how many inputs they answer and of which data and run. The same call continues from
there after a kill; at the end the partial file is renamed into place. With the same batches, so the same bits.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO, Any, TypeVar

from weft.data.readers.files import existing_path
from weft.foundation.errors import WeftError
from weft.foundation.files.atomic_files import DiskError, expect_other_file, write_text
from weft.foundation.files.json_text import parse_json
from weft.foundation.spec import Tree
from weft.runs.answer_table import AnswerFormat, answer_format
from weft.runs.run import Run
from weft.tasks.support.inputs.input_rows import InputRows, takes_texts
from weft.tasks.task import Answer, GenerationOptions

BATCH_ROWS = 256  # of a task that answers at once
Report = Callable[[float, str], None]
Item = TypeVar("Item")


@dataclass(frozen=True)
class AnswerFile:
    """What was written: where, how many inputs it answers, and how many of them an earlier call had answered."""

    path: Path
    inputs: int
    resumed: int


def predict_to_file(
    run: Run, inputs: InputRows | Sequence[str], out: Path, options: Tree, report: Report | None = None
) -> AnswerFile:
    """Answer the rows of a table, or inputs that each are a file or folder, and write the answers to `out`.

    `options` are those of `Run.answer`. `report(share, words)` is told of the progress.
    """
    rows = inputs if isinstance(inputs, InputRows) else None
    files = list(map(str, inputs)) if rows is None else [str(rows.table.path)]
    expect_other_file(out, files)
    table = answer_format(out)(("input",) if rows is None else rows.table.column_names)
    total = len(files) if rows is None else rows.count()
    if not total:
        raise WeftError(f"{', '.join(files)} has no row to answer: give a table with data")
    work = _Work(out, _identity(run, files, rows, options))
    with work.open() as partial:
        resumed = done = work.resume(partial, table)
        answered = _each_input(run, files, options, done) if rows is None else _each_row(run, rows, options, done)
        for count, cells, answers in answered:
            if not done:
                partial.write(table.begin(answers))
            partial.write(table.rows(cells, answers))
            done += count
            work.save(partial, table, done)
            if report is not None:
                report(done / total, f"{done:,} of {total:,}")
        work.finish(partial)
    return AnswerFile(out, total, resumed)


Answered = tuple[int, list[list[str]], list[Answer]]  # inputs answered, cells and answer of each row


def _each_row(run: Run, rows: InputRows, options: Tree, done: int) -> Iterator[Answered]:
    """Batches of rows; where several answers to each are asked for, its cells come as often."""
    size = GenerationOptions().batch if run.task.generates else BATCH_ROWS
    for batch in _batches(islice(rows, done, None), size):
        answers = run.answer([value for _, value in batch], **options)
        each = len(answers) // len(batch)
        yield len(batch), [cells for cells, _ in batch for _ in range(each)], answers


def _each_input(run: Run, inputs: Sequence[str], options: Tree, done: int) -> Iterator[Answered]:
    """Texts in batches; other inputs one by one, for a folder of images or a file of sequences has many answers."""
    size = BATCH_ROWS if takes_texts(run.task) else 1
    for batch in _batches(iter(inputs[done:]), size):
        answers = run.answer(batch, **options)
        yield len(batch), [[str(answer.input)] for answer in answers], answers


def _batches(items: Iterator[Item], size: int) -> Iterator[list[Item]]:
    while batch := list(islice(items, size)):
        yield batch


def _identity(run: Run, given: Sequence[str], rows: InputRows | None, options: Tree) -> Tree:
    """What a partial file must agree with to be continued: data, columns, run and options."""
    columns = [] if rows is None else [rows.table.column_names[place] for place in rows.places]
    stamps = [_stamp(one) for one in (*given, str(run.folder / "model.safetensors"))]
    named = {name: str(value) for name, value in sorted(options.items())}
    return {"files": stamps, "columns": columns, "options": named}


def _stamp(given: str) -> list[Any]:
    """A file by its path, size and time of change; a text by its digest."""
    path = existing_path(given)
    if path is None:
        return [hashlib.sha256(given.encode("utf-8", "surrogatepass")).hexdigest()]
    return [str(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns]


class _Work:
    """The two files of a prediction that is under way."""

    def __init__(self, out: Path, identity: Tree) -> None:
        self.out, self.identity = Path(os.path.realpath(out)), identity
        self.partial = self.out.with_name(f"{self.out.name}.partial")
        self.progress = self.out.with_name(f"{self.out.name}.progress")

    @contextlib.contextmanager
    def open(self) -> Iterator[IO[bytes]]:
        """The partial file, locked: a second process is refused."""
        try:
            with self.partial.open("ab") as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except OSError:
                    raise DiskError(
                        f"{self.partial} is being written by another process: wait for it, or choose another --out"
                    ) from None
                yield file
        except OSError as error:
            raise DiskError(f"cannot write {self.partial}: {error.strerror}; choose another --out") from None

    def resume(self, partial: IO[bytes], table: AnswerFormat) -> int:
        """How many inputs are answered already; the rows of others are dropped."""
        state = self._read()
        same = state.get("identity") == self.identity and partial.tell() >= state["bytes"]
        partial.truncate(state["bytes"] if same else 0)
        partial.seek(0, os.SEEK_END)
        table.columns = tuple(state["columns"]) if same else ()
        return state["inputs"] if same else 0

    def _read(self) -> Tree:
        try:
            state = parse_json(self.progress.read_bytes())
        except (OSError, ValueError):
            return {}
        return state if isinstance(state, dict) else {}

    def save(self, partial: IO[bytes], table: AnswerFormat, inputs: int) -> None:
        """Say how far the partial file goes, once it is on the disk."""
        partial.flush()
        os.fsync(partial.fileno())
        state = {"inputs": inputs, "bytes": partial.tell(), "columns": list(table.columns), "identity": self.identity}
        write_text(self.progress, json.dumps(state))

    def finish(self, partial: IO[bytes]) -> None:
        """The partial file becomes the one that was asked for."""
        os.replace(self.partial, self.out)
        self.progress.unlink(missing_ok=True)
