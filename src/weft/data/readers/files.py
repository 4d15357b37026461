"""Opening and decoding files, reading lines and tables, with errors that name the file and the line."""

from __future__ import annotations

import codecs
import csv
import gzip
import hashlib
import json
import re
import zlib
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

from weft.foundation.errors import WeftError
from weft.foundation.files.json_text import parse_json
from weft.foundation.files.regular_files import expect_regular

BLOCK_SIZE = 1 << 20  # bytes read at once
MAX_CELL_SIZE = 1 << 24  # characters; the csv module's own limit, 131,072, is less than a long article
LONGEST_LINE = 1 << 28  # bytes; a small compressed file can hold a line of any length
SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
UNUSUAL_RATIO, UNUSUAL_SIZE = 200, 1 << 30  # what is this much larger unpacked, and this large, is no data


class DataError(WeftError):
    """Data that cannot be read; the sentence names the file, the line and the remedy."""


def find_files(paths: Sequence[str | Path], suffixes: Sequence[str]) -> list[Path]:
    """Files as given, and all files with these suffixes in given folders, in a fixed order."""
    found: list[Path] = []
    for given in map(Path, paths):
        if given.is_dir():
            inside = sorted(p for p in given.rglob("*") if p.is_file() and name_suffix(p) in suffixes)
            if not inside:
                raise DataError(f"{given} holds no {' or '.join(suffixes)} file: give a folder that does")
            found += inside
        elif given.exists():
            found.append(expect_regular(given, DataError))
        else:
            raise DataError(f"there is no file {given}: check the path")
    return found


def existing_path(given: object) -> Path | None:
    """The path that an input names, if there is one; None for a text, however long or odd."""
    try:
        path = Path(str(given))
        return path if str(given).strip() and path.exists() else None
    except (OSError, ValueError):  # longer than a file name may be, or with a null byte
        return None


def file_exists(path: Path) -> bool:
    """Whether there is such a file; a name in a table can be longer than names may be, or hold a null byte."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def name_suffix(path: Path) -> str:
    """The suffix that names the format: .tsv for `a.tsv` and `a.tsv.gz`."""
    return Path(path.stem).suffix.lower() if path.suffix.lower() == ".gz" else path.suffix.lower()


def open_bytes(path: Path) -> BinaryIO:
    """Open a file for reading, decompressed if it is .gz."""
    expect_regular(path, DataError)
    try:
        unpack: Any = gzip.open if path.suffix.lower() == ".gz" else open
        return unpack(path, "rb")
    except OSError as error:
        raise DataError(f"cannot open {path}: {error.strerror or error}") from None


def file_digest(path: Path) -> str:
    """The SHA-256 of a file's contents; computed once per process while size and time of change stay the same."""
    try:
        stat = path.stat()
        return _digest(path, stat.st_size, stat.st_mtime_ns)
    except OSError as error:
        raise DataError(f"cannot open {path}: {error.strerror or error}") from None


@cache
def _digest(path: Path, size: int, modified: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """(number, line) without line ends, decoded as UTF-8 (or UTF-16, by its mark); an invalid byte is named."""
    number, held = 0, ""
    try:
        with open_bytes(path) as file:
            decoder = codecs.getincrementaldecoder(_encoding(file))()
            for block in chain(iter(lambda: file.readline(LONGEST_LINE), b""), (b"",)):
                *lines, held = (held + decoder.decode(block, final=not block)).split("\n")
                for line in lines:
                    number += 1
                    yield number, line.rstrip("\r")
                if len(held) >= LONGEST_LINE:
                    raise DataError(f"{path.name}, line {number + 1} is longer than {LONGEST_LINE:,} bytes: split it")
    except UnicodeDecodeError as error:
        raise _undecoded(path, number + 1, error) from None
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path.name} cannot be read to its end after line {number}: {error}") from None
    if held:
        yield number + 1, held.rstrip("\r")
    elif number == 0:
        raise DataError(f"{path.name} is empty: give a file with data")


def _encoding(file: Any) -> str:
    """UTF-16 if the file begins with its byte order mark, as some Windows programs write; else UTF-8."""
    return "utf-16" if file.peek(2)[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) else "utf-8-sig"


def _undecoded(path: Path, number: int, error: UnicodeDecodeError) -> DataError:
    name = "UTF-16" if error.encoding.startswith("utf-16") else "UTF-8"
    where = f"{path.name}, line {number}: byte {error.object[error.start]:#04x} is not {name}"
    return DataError(f"{where}; save the file as UTF-8")


def read_text(path: Path) -> str:
    """A whole text file."""
    return "".join(read_blocks(path))


def read_blocks(path: Path, size: int = BLOCK_SIZE) -> Iterator[str]:
    """A text file in blocks of about `size` bytes, however long its lines; line ends become \\n, also at the end."""
    lines, last, held = 0, "", ""
    try:
        with open_bytes(path) as file:
            decoder = codecs.getincrementaldecoder(_encoding(file))()
            while block := file.read(size):
                # A \r at the end waits for the next block: it is part of a line end only if \n follows.
                text = held + decoder.decode(block)
                last = text[-1:] or last
                lines += text.count("\n")
                kept = text.rstrip("\r")
                held = text[len(kept) :]
                if kept:
                    yield re.sub("\r+\n", "\n", kept) if "\r" in kept else kept
            decoder.decode(b"", final=True)
    except UnicodeDecodeError as error:
        number = lines + error.object.count(b"\n", 0, error.start) + 1
        raise _undecoded(path, number, error) from None
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path.name} cannot be read to its end after line {lines}: {error}") from None
    if not last:
        raise DataError(f"{path.name} is empty: give a file with data")
    if last != "\n":
        yield "\n"


def read_table(path: Path) -> Iterator[tuple[int, list[str]]]:
    """(line, cells) of a .csv or .tsv file, a header included, and of a .jsonl file, whose fields are its columns."""
    if name_suffix(path) == ".jsonl":
        yield from read_fields(path)
        return
    width = 0
    for number, row in _read_tsv(path) if name_suffix(path) == ".tsv" else _read_csv(path):
        width = width or len(row)
        if len(row) != width:
            raise DataError(f"{path.name}, line {number}: {len(row)} cells, but the first line has {width}")
        yield number, row


def _read_tsv(path: Path) -> Iterator[tuple[int, list[str]]]:
    return ((number, line.split("\t")) for number, line in read_lines(path) if line)


def _read_csv(path: Path) -> Iterator[tuple[int, list[str]]]:
    """(first line, cells): a quoted cell may hold commas and line ends; strict, or a lost quote would swallow rows."""
    delimiter = csv_delimiter(path)
    csv.field_size_limit(max(csv.field_size_limit(), MAX_CELL_SIZE))
    rows = csv.reader((line + "\n" for _, line in read_lines(path)), delimiter=delimiter, strict=True)
    number = 1
    try:
        for row in rows:
            if row:
                yield number, row
            number = rows.line_num + 1
    except csv.Error as error:
        raise DataError(
            f"{path.name}, line {number}: {error}; double the quotes inside a cell in quotes, and close it"
        ) from None


def csv_delimiter(path: Path) -> str:
    """The delimiter of a .csv: a semicolon if the first line has one and no comma, else a comma."""
    csv.field_size_limit(max(csv.field_size_limit(), MAX_CELL_SIZE))
    first = next((line for _, line in read_lines(path) if line), "")
    try:
        by_comma, by_semicolon = (len(next(csv.reader([first], delimiter=sign), [])) for sign in ",;")
    except csv.Error as error:
        raise DataError(f"{path.name}, line 1: {error}; cells have at most {MAX_CELL_SIZE:,} characters") from None
    return ";" if by_comma == 1 and by_semicolon > 1 else ","


def read_fields(path: Path, columns: Sequence[str] | None = None) -> Iterator[tuple[int, list[str]]]:
    """(line, texts of these fields) of a .jsonl file; without `columns` of all that its first line has."""
    for number, row in read_jsonl(path):
        # The first line decides: later lines may have other fields, in another order.
        columns = list(row) if columns is None else columns
        for name in columns:
            if name not in row:
                raise DataError(
                    f"{path.name}, line {number}: there is no field {name!r}; it has {', '.join(row)[:200]}"
                )
            if not isinstance(row[name], str | int | float):
                raise DataError(
                    f"{path.name}, line {number}: field {name!r} is {json.dumps(row[name])[:40]}, but a text is needed"
                )
        yield number, [str(row[name]) for name in columns]


def _is_text(value: Any) -> bool:
    """Whether all texts in a JSON value can be encoded."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


def expect_plausible(path: Path, size: int, stored: int) -> None:
    """Refuse to unpack very much from very little."""
    if size > UNUSUAL_SIZE and size > UNUSUAL_RATIO * stored:
        raise DataError(
            f"{path.name} claims {size:,} bytes in {stored:,} of a file, as no data have it: do not trust it, or store "
            "it uncompressed"
        )


def read_jsonl(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line, object) of a .jsonl file; blank lines are skipped."""
    for number, line in read_lines(path):
        if not line.strip():
            continue
        try:
            row = parse_json(line)
        except ValueError as error:
            raise DataError(f"{path.name}, line {number}: not JSON ({error})") from None
        if SURROGATE.search(line) and not _is_text(row):
            raise DataError(
                f"{path.name}, line {number}: a text holds half of a surrogate pair, which is no character: "
                "remove escapes from \\ud800 to \\udfff that stand alone"
            )
        if not isinstance(row, dict):
            raise DataError(f"{path.name}, line {number}: a JSON object is expected, not a {type(row).__name__}")
        yield number, row
