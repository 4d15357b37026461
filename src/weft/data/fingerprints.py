"""Fingerprints of data files: by them a resumed run knows whether its data are still those that it was begun with.

A fingerprint is a file's size, its time of change and its SHA-256. Where size and time are as before, the contents are
taken to be the same, as `make` and `rsync` do; else the digest decides.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from weft.data.readers.files import DataError, file_digest


@dataclass(frozen=True)
class Fingerprint:
    """One file as it was when it was read: `modified` is in nanoseconds."""

    path: str
    size: int
    modified: int
    sha256: str


def expect_fingerprint(row: Any) -> Fingerprint:
    """The fingerprint in a JSON object; a TypeError or ValueError if it is none."""
    found = Fingerprint(**row)
    for name, kind in (("path", str), ("size", int), ("modified", int), ("sha256", str)):
        if not isinstance(getattr(found, name), kind):
            raise ValueError(f"{name} is no {kind.__name__}")
    return found


def take_fingerprints(sources: Iterable[str]) -> list[Fingerprint]:
    """Of all files that these paths mean, those in folders included; sources that are no paths have none."""
    return [_fingerprint(file) for file in _files(sources)]


def expect_unchanged(known: Sequence[Fingerprint], sources: Iterable[str], run: Path) -> None:
    """Refuse data that differ from what a run was begun with, by the name of the first file that does."""
    before = {one.path: one for one in known}
    files = {str(file): file for file in _files(sources)}
    for path, old in before.items():
        if path not in files:
            raise _changed(path, "is gone", run)
        stat = files[path].stat()
        if (stat.st_size, stat.st_mtime_ns) == (old.size, old.modified):
            continue
        if stat.st_size != old.size or _fingerprint(files[path]).sha256 != old.sha256:
            raise _changed(path, "has changed", run)
    added = next((path for path in files if path not in before), None)
    if added is not None:
        raise _changed(added, "is new", run)


def _changed(path: str, what: str, run: Path) -> DataError:
    return DataError(
        f"{path} {what} since the run in {run} was begun, and --resume needs the same data: "
        "restore it, or start a new run with another --out"
    )


def _files(sources: Iterable[str]) -> list[Path]:
    """Hidden files and those in hidden folders are no data: other programs may write them at any time."""
    found: list[Path] = []
    for source in map(Path, sources):
        if source.is_dir():
            inside = (file for file in source.rglob("*") if file.is_file())
            found += sorted(file for file in inside if not _is_hidden(file.relative_to(source)))
        elif source.is_file():
            found.append(source)
    return list(dict.fromkeys(found))


def _is_hidden(file: Path) -> bool:
    return any(part.startswith(".") for part in file.parts)


def _fingerprint(file: Path) -> Fingerprint:
    stat = file.stat()
    return Fingerprint(str(file), stat.st_size, stat.st_mtime_ns, file_digest(file))
