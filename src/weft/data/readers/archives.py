"""Archives: the files of a tar or zip, read one by one without unpacking it."""

from __future__ import annotations

import lzma
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path

from weft.data.readers.files import DataError

ARCHIVE_SUFFIXES = (".tar", ".tgz", ".tar.gz", ".txz", ".tar.xz", ".tar.bz2", ".zip")


def is_archive(path: Path) -> bool:
    """Whether the file name is that of a tar or zip."""
    return path.name.lower().endswith(ARCHIVE_SUFFIXES)


def read_members(path: Path) -> Iterator[tuple[str, bytes]]:
    """(name, content) of the files in an archive, in order; hidden files are skipped."""
    if not path.exists():
        raise DataError(f"there is no file {path}: check the path")
    try:
        yield from _zip_members(path) if path.suffix.lower() == ".zip" else _tar_members(path)
    except (tarfile.TarError, zipfile.BadZipFile, OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        raise DataError(f"{path.name} is not a complete archive ({error}): fetch it again") from None
    except (RuntimeError, NotImplementedError) as error:  # encrypted, or compressed in a way that zipfile lacks
        raise DataError(f"{path.name} cannot be read ({error}): unpack it, and give its folder") from None


def _tar_members(path: Path) -> Iterator[tuple[str, bytes]]:
    with tarfile.open(path) as archive:
        for member in archive:
            body = archive.extractfile(member) if member.isfile() and not _is_hidden(member.name) else None
            if body is not None:
                yield member.name, body.read()


def _zip_members(path: Path) -> Iterator[tuple[str, bytes]]:
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            if not member.is_dir() and not _is_hidden(member.filename):
                yield member.filename, archive.read(member)


def _is_hidden(name: str) -> bool:
    return Path(name).name.startswith(".")
