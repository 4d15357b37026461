"""Rows of a table as inputs of a run: which column a run reads, and what `predict` is given for each row.

Tasks whose inputs may come from files of many inherit from the classes below: other rooms ask for these, not for names.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from weft.data.readers.files import DataError, existing_path, name_suffix, read_text
from weft.data.readers.images import IMAGE_SUFFIXES
from weft.data.readers.tables import TABLE_SUFFIXES, Table, TableOptions, open_lines, open_table
from weft.tasks.task import Task

PLAIN_TEXT = (".txt", ".md", ".text")
ROW_SUFFIXES = (*TABLE_SUFFIXES, *PLAIN_TEXT)
INPUT_NAMES = ("text", "sentence", "content", "document", "source")


@dataclass(frozen=True)
class InputRows:
    """A table, the places of the columns that a run reads, and how their cells become an input of `predict`.

    `truth` is the place of the right answers, where the table has them.
    """

    table: Table
    places: tuple[int, ...]
    make: Callable[[Sequence[str]], Any]
    truth: int | None = None

    def __iter__(self) -> Iterator[tuple[list[str], Any]]:
        """(all cells, the input) of each row."""
        for cells in self.table.read_all():
            yield cells, self.make([cells[place] for place in self.places])

    def count(self) -> int:
        """How many rows there are; all are read, so that a broken one is found before the first answer."""
        return sum(1 for _ in self.table.read_all())

    def row(self, number: int) -> tuple[list[str], Any]:
        """(all cells, the input) of one row, from 0."""
        found = next((row for place, row in enumerate(self) if place == number), None)
        if found is None:
            rows = self.count()
            raise DataError(f"{self.table.path.name} has {rows:,} rows, from 0 to {rows - 1:,}, but no row {number:,}")
        return found

    @property
    def notes(self) -> tuple[str, ...]:
        """What users should know: whether there is a header, and what is read."""
        names = " and ".join(self.table.column_names[place] for place in self.places)
        lines = name_suffix(self.table.path) in PLAIN_TEXT
        what = "each line is one text" if lines else f"the run reads column {names}"
        return (*self.table.notes, f"{self.table.path.name}: {what}")


@dataclass(frozen=True)
class FileExample:
    """One example of a file: an input as `predict` takes it, its name in titles, and what is known to be right."""

    value: Any
    name: str
    truth: Any = None


class FileExamples(ABC):
    """What a task inherits whose data files hold examples that can be shown one by one: `data.npz#3`."""

    @abstractmethod
    def open_example(self, path: Path, number: int, folder: Path) -> FileExample:
        """Example `number` of a file, from 0; what has to be a file of its own is written into `folder`."""


class RowInputs(FileExamples):
    """What a task inherits whose inputs may be rows of a table."""

    @abstractmethod
    def open_rows(self, path: Path, options: TableOptions) -> InputRows:
        """The rows of a file as inputs."""

    def open_example(self, path: Path, number: int, folder: Path) -> FileExample:
        """The row of a table, with its right answer where the table has one."""
        rows = self.open_rows(path, TableOptions())
        cells, value = rows.row(number)
        name = value if isinstance(value, str) else f"{path.name} {number}"
        return FileExample(value, name, None if rows.truth is None else cells[rows.truth])


class TextInputs(RowInputs):
    """What a task inherits whose inputs are texts; `columns` are those that it was trained on, if they have names."""

    options: Any
    columns: tuple[str, ...] = ()

    @property
    def takes_texts(self) -> bool:
        """Whether an input is a text, so that the path of a file must not be taken for one."""
        return True

    def open_rows(self, path: Path, options: TableOptions) -> InputRows:
        """Rows of texts, from the column that the run was trained on."""
        trained = self.columns or tuple(getattr(self.options, "columns", ()))
        return text_rows(path, replace(options, trained=trained))


def takes_texts(task: Task) -> bool:
    """Whether the inputs of a task are texts."""
    return isinstance(task, TextInputs) and task.takes_texts


def open_inputs(task: Task, given: Sequence[str], options: TableOptions) -> tuple[list[Any], list[str]]:
    """(inputs as `predict` takes them, notes): a table stands for its rows, a text file for the text in it.

    A path that exists is never taken for a text without a note.
    """
    inputs: list[Any] = []
    notes: list[str] = []
    for one in given:
        path = existing_path(one)
        if path is None or not isinstance(task, RowInputs) or (task.takes_images and _is_image(path)):
            inputs.append(one)
            if path is None and takes_texts(task) and _names_a_file(one):
                notes.append(f"there is no file {one}: it was read as the text itself")
        elif path.is_file() and name_suffix(path) in TABLE_SUFFIXES:
            rows = task.open_rows(path, options)
            notes += rows.notes
            inputs += [value for _, value in rows]
        elif takes_texts(task):
            text, note = _text_of(path, task)
            inputs.append(text)
            notes.append(note)
        else:
            inputs.append(one)
    return inputs, notes


def _names_a_file(text: str) -> bool:
    """Whether a text looks like the path of a table or a text file."""
    return len(text.split()) == 1 and text.lower().endswith((*TABLE_SUFFIXES, *PLAIN_TEXT))


def _is_image(path: Path) -> bool:
    return path.suffix.lower() in IMAGE_SUFFIXES


def _text_of(path: Path, task: Task) -> tuple[str, str]:
    if path.is_file() and name_suffix(path) in PLAIN_TEXT:
        return read_text(path).rstrip(
            "\n"
        ), f"{path} is a file: it was read as one text (to answer each line: < {path})"
    if path.is_file() and path.suffix:
        raise DataError(
            f"{path} is a file, but a run of task {task.name} reads texts: give a text, a .txt file, or a table "
            f"({', '.join(TABLE_SUFFIXES)})"
        )
    kind = "file" if path.is_file() else "folder"
    return str(path), f"there is a {kind} named {path}, but {str(path)!r} itself was read as the text"


def text_rows(path: Path, options: TableOptions) -> InputRows:
    """Rows of texts: a table whose text column is chosen, recognized or the only one; or the lines of a text file."""
    if name_suffix(path) in PLAIN_TEXT:
        return InputRows(open_lines(path), (0,), _first)
    expect_table(path)
    text, label = options.trained[:1], options.trained[1:2]
    table = open_table(path, replace(options, trained=text))
    place = _text_place(table, options)
    truth = table.names.index(label[0]) if label and label[0] in table.names else None
    return InputRows(table, (place,), _first, truth)


def expect_table(path: Path) -> None:
    """Refuse a file that has no rows."""
    if not path.is_file():
        raise DataError(f"there is no file {path}: check the path")
    if name_suffix(path) not in ROW_SUFFIXES:
        raise DataError(f"{path.name} is no table: give a {', '.join(ROW_SUFFIXES[:3])} or .txt file")


def _first(cells: Sequence[str]) -> str:
    return cells[0]


def _text_place(table: Table, options: TableOptions) -> int:
    """Asked for, trained on (by name; by number without a header), the only one, or of a usual name."""
    if options.columns:
        return table.places(options.columns[:1])[0]
    trained = options.trained[:1]
    if trained and trained[0] in (table.names or table.column_names):
        return table.places(trained)[0]
    if table.width == 1:
        return 0
    usual = [place for place, name in enumerate(table.names) if name.lower() in INPUT_NAMES]
    if len(usual) == 1:
        return usual[0]
    longest = max(range(table.width), key=table.mean_length)
    raise table.ask_for_columns("the run reads one", [longest])
