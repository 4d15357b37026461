"""Readers of time series, for forecasting."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from weft.data.readers.files import DataError, csv_delimiter, find_files, name_suffix, read_table

TIME_COLUMNS = ("time", "date", "datetime", "timestamp", "t", "ds")
MISSING_VALUES = ("", "nan", "na", "n/a", "null", "none", "?", "-")


@dataclass(frozen=True)
class TimeSeries:
    """Values [N, C] at N times in C named columns; `times` as written, or None without a time column.

    `left_out`: columns without numbers.
    """

    names: tuple[str, ...]
    times: list[str] | None
    values: NDArray[np.float64]
    left_out: tuple[str, ...] = ()


def read_series(paths: Sequence[str | Path], columns: Sequence[str] | None = None, least: int = 2) -> TimeSeries:
    """A .csv (plain or .gz) of numeric columns, with or without a header and a time column; several files follow on.

    The time column is the first without numbers, or one with such a name. `columns` chooses by name; by default all
    columns with at least as many numbers as texts are read. At least `least` rows are required.
    """
    files = find_files(paths, (".csv", ".tsv"))
    parts = [_read_one(path, columns) for path in files]
    for path, part in zip(files, parts, strict=True):
        if part.names != parts[0].names:
            raise DataError(
                f"{path.name} has columns {', '.join(part.names)}, and {files[0].name} {', '.join(parts[0].names)}: "
                "give files with the same columns"
            )
    if not parts:
        raise DataError("no file of a series was given: give a .csv")
    values = np.concatenate([part.values for part in parts])
    if len(values) < least:
        many = "row" if len(values) == 1 else "rows"
        raise DataError(
            f"{files[0].name} has {len(values)} {many} of numbers, but {least} are needed: give a longer series"
        )
    times = [time for part in parts for time in part.times or []]
    return TimeSeries(parts[0].names, times if len(times) == len(values) else None, values, parts[0].left_out)


def _read_one(path: Path, columns: Sequence[str] | None) -> TimeSeries:
    rows = list(read_table(path))
    if not rows:
        raise DataError(f"{path.name} is empty: give a file with data")
    if name_suffix(path) != ".tsv" and csv_delimiter(path) == ";":
        # Where semicolons separate the cells, a comma may be the decimal point.
        rows = [(number, [_with_point(cell) for cell in cells]) for number, cells in rows]
    header = _header(rows)
    names = [name.strip() for name in header] if header else [str(place + 1) for place in range(len(rows[0][1]))]
    data = rows[1:] if header else rows
    if not data:
        raise DataError(f"{path.name} has a header and no rows: give a series of numbers")
    time = _time_column(names, data[0][1])
    others = [place for place in range(len(names)) if place != time]
    numeric = [place for place in others if _is_numeric([cells[place] for _, cells in data])]
    chosen = numeric if columns is None else _chosen(path, names, columns)
    if not chosen:
        raise DataError(f"{path.name} has no numeric column: it has {', '.join(names)[:200]}")
    values = np.empty((len(data), len(chosen)))
    for row, (number, cells) in enumerate(data):
        for channel, place in enumerate(chosen):
            values[row, channel] = _number(path, number, names[place], cells[place])
    times = None if time is None else [cells[time].strip() for _, cells in data]
    left_out = () if columns is not None else tuple(names[place] for place in others if place not in numeric)
    return TimeSeries(tuple(names[place] for place in chosen), times, values, left_out)


def _header(rows: Sequence[tuple[int, list[str]]]) -> list[str] | None:
    """The first row if it names columns: a word above a number, or a first cell without digits."""
    first = rows[0][1] if rows else []
    second = rows[1][1] if len(rows) > 1 else first
    worded = any(_is_number(below) and not _is_number(cell) for cell, below in zip(first, second, strict=True))
    wordy = bool(first) and not _is_missing(first[0]) and not any(letter.isdigit() for letter in first[0])
    return first if worded or wordy else None


def _time_column(names: Sequence[str], cells: Sequence[str]) -> int | None:
    named = (place for place, name in enumerate(names) if name.lower() in TIME_COLUMNS)
    worded = (place for place, cell in enumerate(cells) if not _is_number(cell) and not _is_missing(cell))
    return next(named, next(worded, None))


def _chosen(path: Path, names: Sequence[str], columns: Sequence[str]) -> list[int]:
    missing = next((name for name in columns if name not in names), None)
    if missing is not None:
        raise DataError(f"{path.name} has no column {missing!r}: it has {', '.join(names)[:200]}")
    return [list(names).index(name) for name in columns]


def _is_numeric(cells: Sequence[str]) -> bool:
    """Whether at most half of the filled cells are texts: a few texts among numbers are mistakes, to be reported."""
    filled, numbers = (sum(map(of, cells)) for of in (lambda cell: not _is_missing(cell), _is_number))
    return 0 < numbers >= filled - numbers


def _with_point(cell: str) -> str:
    pointed = cell.replace(",", ".")
    return pointed if _is_number(pointed) else cell


def _is_missing(cell: str) -> bool:
    return cell.strip().lower() in MISSING_VALUES


def _is_number(cell: str) -> bool:
    try:
        return bool(np.isfinite(float(cell)))
    except ValueError:
        return False


def _number(path: Path, line: int, name: str, cell: str) -> float:
    if _is_missing(cell):
        raise DataError(f"{path.name}, line {line}: column {name!r} has no value: fill it or remove the row")
    if not _is_number(cell):
        raise DataError(
            f"{path.name}, line {line}: column {name!r} holds {cell.strip()[:40]!r}, which is not a number: "
            "correct it, or choose the columns with --set data.columns=..."
        )
    return float(cell)
