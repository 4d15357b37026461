"""Tables of texts: .csv, .tsv and .jsonl with or without a header, and which of their columns are wanted.

Rows are read one by one, whatever the size of the file; its first rows are looked at before, to find a header.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from shlex import quote
from typing import Any

from weft.data.readers.files import DataError, name_suffix, read_fields, read_jsonl, read_lines, read_table
from weft.data.readers.headers import JUDGED_ROWS, Header, HeaderJudgment, judge_header
from weft.foundation.files.json_text import as_whole_number

TABLE_SUFFIXES = (".tsv", ".csv", ".jsonl")


@dataclass(frozen=True)
class TableOptions:
    """How users want tables read: the columns, by name or by number from 1, and whether there is a header.

    `trained`: names of the columns that a run was trained on; where a first row has them, they are meant.
    """

    columns: tuple[str, ...] = ()
    header: Header = "auto"
    trained: tuple[str, ...] = ()


@dataclass(frozen=True)
class Table:
    """One table: `names` of its columns, empty without a header; its first rows of data; what was assumed of it."""

    path: Path
    names: tuple[str, ...]
    first_rows: tuple[tuple[str, ...], ...]
    width: int
    notes: tuple[str, ...] = ()

    @property
    def column_names(self) -> tuple[str, ...]:
        """Names of the columns, or their numbers from 1."""
        return self.names or tuple(str(place + 1) for place in range(self.width))

    def places(self, columns: Sequence[str]) -> list[int]:
        """Where columns are that were asked for by name or number."""
        if all(name in self.names for name in columns):
            return [self.names.index(name) for name in columns]
        numbers = [as_whole_number(name) or 0 for name in columns]
        if all(1 <= number <= self.width for number in numbers):
            return [number - 1 for number in numbers]
        missing = next(name for name in columns if name not in self.names)
        has = ", ".join(self.names)[:200] if self.names else f"no header, and columns 1 to {self.width}"
        raise DataError(f"{self.path.name} has no column {missing!r:.60}: it has {has}")

    def read(self, places: Sequence[int]) -> Iterator[tuple[int, list[str]]]:
        """(line, cells of these columns) of each row of data."""
        if name_suffix(self.path) == ".jsonl":
            yield from read_fields(self.path, [self.names[place] for place in places])
            return
        rows = read_table(self.path)
        for number, cells in islice(rows, 1 if self.names else 0, None):
            yield number, [cells[place] for place in places]

    def read_all(self) -> Iterator[list[str]]:
        """All cells of each row of data, as texts; a field that a line of .jsonl lacks is empty."""
        if name_suffix(self.path) == ".jsonl":
            for _, row in read_jsonl(self.path):
                yield [_as_text(row.get(name)) for name in self.names]
        elif name_suffix(self.path) in TABLE_SUFFIXES:
            yield from (cells for _, cells in self.read(range(self.width)))
        else:
            yield from ([line] for _, line in read_lines(self.path) if line.strip())

    def cells(self, place: int) -> list[str]:
        """The first values of a column."""
        return [row[place].strip() for row in self.first_rows]

    def different(self, place: int) -> int:
        """How many different values a column has, among its first ones: few for labels, many for texts."""
        return len({*self.cells(place)} - {""})

    def mean_length(self, place: int) -> float:
        """Characters per value of a column."""
        return sum(map(len, self.cells(place))) / max(1, len(self.first_rows))

    def ask_for_columns(self, wanted: str, suggested: Sequence[int]) -> DataError:
        """The error of a table with other columns than the wanted ones: it names them, and the option to type."""
        names = self.column_names
        if any("," in name for name in names):
            names = tuple(str(place + 1) for place in range(self.width))
        option = quote(f"data.columns={','.join(names[place] for place in suggested)}")
        has = f"{self.width} columns ({', '.join(self.column_names)[:200]})" if self.width > 1 else "one column"
        remedy = f"choose, such as --set {option}" if self.width > 1 else "give a table that has both"
        return DataError(f"{self.path.name} has {has}, but {wanted}: {remedy}")


def open_table(path: Path, options: TableOptions = TableOptions()) -> Table:
    """Look at the first rows of a table: its header, where it has one, by what users say or by evidence."""
    if name_suffix(path) == ".jsonl":
        rows = [row for _, row in islice(read_jsonl(path), JUDGED_ROWS)]
        names = tuple(rows[0]) if rows else ()
        return Table(path, names, tuple(tuple(str(row.get(name, "")) for name in names) for row in rows), len(names))
    first = tuple(tuple(cells) for _, cells in islice(read_table(path), JUDGED_ROWS))
    if not first:
        raise DataError(f"{path.name} is empty: give a file with data")
    names = tuple(cell.strip() for cell in first[0])
    judgment = _decided(path, names, options)
    notes: tuple[str, ...] = ()
    if judgment is None:
        judgment = judge_header(first)
        notes = _notes(path, names, judgment)
    if judgment.is_header:
        return Table(path, names, first[1:], len(names), notes)
    return Table(path, (), first, len(names), notes)


def open_lines(path: Path) -> Table:
    """A text file as a table of one column, a line per row; blank lines are skipped."""
    return Table(path, ("text",), tuple((line,) for _, line in islice(read_lines(path), JUDGED_ROWS)), 1)


def _as_text(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _decided(path: Path, names: Sequence[str], options: TableOptions) -> HeaderJudgment | None:
    """Whether there is a header where it was said, or where it has the names that are asked for."""
    named = any(not name.isdecimal() for name in options.columns)
    if options.header == "no" and named:
        raise DataError(
            f"{path.name} is said to have no header (data.header=no), so its columns have no names: "
            f"choose them by number, such as --set data.columns=1,2"
        )
    if options.header != "auto":
        return HeaderJudgment(options.header == "yes", "it was said")
    for asked in (options.columns if named else (), options.trained):
        if asked and all(name in names for name in asked):
            return HeaderJudgment(True, "it has the columns")
    if named:
        missing = next(name for name in options.columns if name not in names)
        raise DataError(f"{path.name} has no column {missing!r}: it has {', '.join(names)[:200]}")
    return None


def _notes(path: Path, names: Sequence[str], judgment: HeaderJudgment) -> tuple[str, ...]:
    shown = ", ".join(names)[:80]
    if judgment.is_header:
        return (f"{path.name}: its first line ({shown}) is a header: {judgment.reason} (if not: data.header=no)",)
    if judgment.certain:
        return ()
    return (
        f"{path.name}: nothing tells whether its first line ({shown}) is a header, so it was read as data "
        "(--set data.header=yes if it is one)",
    )
