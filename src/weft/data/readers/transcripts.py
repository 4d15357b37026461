"""Readers of transcripts: sounds (.wav) or sequences of vectors (.npz), and a table of what is said in each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from weft.data.readers.files import DataError, file_exists, find_files, name_suffix, read_jsonl, read_table
from weft.data.readers.sequences import read_sequences
from weft.data.readers.sounds import log_mel, read_sound
from weft.data.readers.tables import TableOptions, open_table

TABLE_SUFFIXES = (".csv", ".tsv", ".jsonl")
FILE_FIELDS = ("file", "path", "audio", "sound", "wav", "file_name")
TEXT_FIELDS = ("text", "transcript", "transcription", "sentence")

Values = NDArray[np.float32]


@dataclass(frozen=True)
class SourceSequences:
    """Vectors [T, C] of each sequence with its name; `rate` is the sampling rate where they are frames of sounds."""

    names: list[str]
    values: list[Values]
    rate: int | None

    @property
    def channels(self) -> int:
        return int(self.values[0].shape[1])


@dataclass(frozen=True)
class Transcripts:
    """Sequences, and the text of each."""

    sources: SourceSequences
    texts: list[str]


def read_transcripts(
    paths: Sequence[str | Path], folder: str | Path | None = None, columns: Sequence[str] = ()
) -> Transcripts:
    """Tables (.csv, .tsv, .jsonl) of files and texts, or folders that hold such a table; a header is recognized.

    Files are looked for in `folder`, or else beside the table. An .npz of N sequences is named by N lines, in their
    order. `columns` are those of file and text, by name or number from 1.
    """
    texts: dict[Path, list[str]] = {}
    for path in find_files(paths, TABLE_SUFFIXES):
        if name_suffix(path) not in TABLE_SUFFIXES:
            raise DataError(
                f"{path.name} is no table of files and texts: give a .csv, .tsv or .jsonl with file and text"
            )
        place = path.parent if folder is None else Path(folder)
        for number, name, text in _rows(path, columns):
            file = place / name
            if file not in texts and not file_exists(file):
                raise DataError(
                    f"{path.name}, line {number}: there is no file {file}; paths are relative to the table, "
                    "or to --set data.files=FOLDER"
                )
            if not text.strip():
                raise DataError(f"{path.name}, line {number}: the text of {name} is empty: write or remove it")
            texts.setdefault(file, []).append(" ".join(text.split()))
    if not texts:
        raise DataError(f"{', '.join(map(str, paths))} has no line of file and text: give one per sequence")
    sources = read_sources(list(texts))
    found = [text for file in texts for text in texts[file]]
    counts = {file: len(one) for file, one in texts.items()}
    for file, count in counts.items():
        held = sources.names.count(str(file))
        if held != count:
            raise DataError(f"{file.name} holds {held} sequences, but {count} lines name it: give one line for each")
    return Transcripts(sources, found)


def read_sources(paths: Sequence[str | Path]) -> SourceSequences:
    """Log-mel frames of .wav files of one sampling rate, or vectors of .npz files, all of the same channels."""
    names: list[str] = []
    values: list[Values] = []
    rate: int | None = None
    for path in map(Path, paths):
        if not file_exists(path):
            raise DataError(f"there is no file {path}: check the path")
        if path.suffix.lower() == ".wav":
            own, samples = read_sound(path)
            if rate not in (None, own):
                raise DataError(f"{path} has {own} samples per second, but others have {rate}: resample to one rate")
            rate = own
            found = [log_mel(samples, own)]
        elif path.suffix.lower() == ".npz":
            found = read_sequences([path], labeled=False).values
        else:
            raise DataError(f"{path} is neither a .wav nor an .npz file: convert it")
        for one in found:
            if values and one.shape[1] != values[0].shape[1]:
                raise DataError(
                    f"{path} has {one.shape[1]} channels, but {names[0]} has {values[0].shape[1]}: "
                    "all need the same channels"
                )
            names.append(str(path))
            values.append(one)
    return SourceSequences(names, values, rate)


def _rows(path: Path, columns: Sequence[str]) -> Iterator[tuple[int, str, str]]:
    """(line, file, text)."""
    if columns and len(columns) != 2:
        raise DataError(f"{len(columns)} columns, but two are needed: those of file and text")
    if columns:
        table = open_table(path, TableOptions(tuple(columns)))
        for number, (file, text) in table.read(table.places(columns)):
            yield number, file.strip(), text
    elif name_suffix(path) == ".jsonl":
        for number, row in read_jsonl(path):
            named = [
                next((row[field] for field in fields if isinstance(row.get(field), str)), None)
                for fields in (FILE_FIELDS, TEXT_FIELDS)
            ]
            if None in named:
                raise DataError(
                    f"{path.name}, line {number}: a file and a text are needed; it has {', '.join(row)[:200]}"
                )
            yield number, str(named[0]).strip(), str(named[1])
    else:
        yield from _table_rows(path)


def _table_rows(path: Path) -> Iterator[tuple[int, str, str]]:
    file, text = 0, 1
    for place, (number, cells) in enumerate(read_table(path)):
        names = [cell.strip().lower() for cell in cells]
        if place == 0 and set(names) & set(FILE_FIELDS) and set(names) & set(TEXT_FIELDS):
            file, text = (
                next(names.index(field) for field in fields if field in names) for fields in (FILE_FIELDS, TEXT_FIELDS)
            )
        elif len(cells) != 2 and place == 0:
            raise DataError(
                f"{path.name}, line {number}: {len(cells)} columns and no header; begin with the line file,text, "
                "put texts with commas in quotes, or choose with --set data.columns=FILE,TEXT"
            )
        else:
            yield number, cells[file].strip(), cells[text]
