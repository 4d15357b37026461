"""Untrusted files: names that stay inside their folder, JSON of bounded size, fields of any kind."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from weft.data.readers.files import DataError
from weft.foundation.files.json_text import parse_json

LARGEST_JSON = 64 << 20  # bytes; the largest indices and vocabularies in use have about 10 million
SMALL_JSON = 4 << 20


@contextmanager
def fields_of(name: str) -> Iterator[None]:
    """Code that reads fields of a stranger's file: one of another kind than it takes it for is told in a sentence."""
    try:
        yield
    except (TypeError, ValueError, KeyError, AttributeError, IndexError, ArithmeticError, RecursionError) as error:
        reason = " ".join(str(error).split())[:100]
        raise DataError(
            f"{name}, or a file beside it, has a field of the wrong kind ({reason}): fetch it again"
        ) from None


def file_inside(folder: Path, name: Any) -> Path:
    """The file of this name in the folder itself; paths, and links that lead out of the folder, are refused.

    The exception is the cache of the Hugging Face hub, whose snapshots are links into the blobs of the same model.
    """
    plain = isinstance(name, str) and name not in ("", ".", "..") and not set("/\\\0:") & set(name)
    if not plain:
        raise DataError(f"{folder.name} names the file {name!r:.80}, which is outside of it: do not trust this folder")
    path, home = folder / name, folder.resolve()
    homes = [home]
    if home.parent.name == "snapshots":
        homes.append(home.parent.parent / "blobs")
    if path.is_symlink() and path.resolve().parent not in homes:
        raise DataError(f"{path} is a link to a file outside of its folder: do not trust it, or copy the file there")
    return path


def has_file(folder: Path, name: str) -> bool:
    """Whether the folder holds this file; a link that leads out of it is refused."""
    return file_inside(folder, name).is_file()


def read_json(path: Path, most: int = LARGEST_JSON) -> dict[str, Any]:
    """An object from a JSON file."""
    tree = _read(path, most)
    if not isinstance(tree, dict):
        raise DataError(f"{path.name} is a {type(tree).__name__}, but a table is needed: fetch it again")
    return tree


def read_modules(folder: Path) -> list[tuple[str, Path]]:
    """(kind, folder) of the modules of sentence-transformers, as modules.json lists them; none without the file."""
    file = file_inside(folder, "modules.json")
    if not file.is_file():
        return []
    try:
        return [
            (str(row["type"]).rpartition(".")[2], file_inside(folder, row["path"]) if row.get("path") else folder)
            for row in _read(file, SMALL_JSON)
        ]
    except (TypeError, KeyError, AttributeError):
        raise DataError("modules.json is not a list of modules: fetch it again") from None


def _read(path: Path, most: int) -> Any:
    try:
        size = path.stat().st_size
        if size > most:
            raise DataError(f"{path.name} has {size:,} bytes, which no file of its kind has: do not trust it")
        return parse_json(path.read_bytes())
    except FileNotFoundError:
        raise DataError(f"{path.parent} has no {path.name}: give a complete folder, as it was downloaded") from None
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from None
    except ValueError as error:
        raise DataError(f"{path.name} is not readable JSON ({str(error)[:80]}): fetch it again") from None


def read_optional_json(folder: Path, name: str) -> dict[str, Any]:
    """The object in a JSON file of the folder; empty if there is no such file."""
    path = file_inside(folder, name)
    return read_json(path) if path.is_file() else {}
