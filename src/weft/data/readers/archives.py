"""Archives: the files of a tar, read one by one without unpacking it."""

from __future__ import annotations

import lzma
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path

from weft.data.readers.files import DataError

ARCHIVE_SUFFIXES = (".tar", ".tgz", ".tar.gz", ".tar.xz", ".tar.bz2")


def is_archive(path: Path) -> bool:
    """Whether the file name is that of a tar."""
    return path.name.lower().endswith(ARCHIVE_SUFFIXES)


def read_members(path: Path) -> Iterator[tuple[str, bytes]]:
    """(name, content) of the files in a tar, in order; hidden files are skipped."""
    if not path.exists():
        raise DataError(f"there is no file {path}: check the path")
    try:
        with tarfile.open(path) as archive:
            for member in archive:
                hidden = Path(member.name).name.startswith(".")
                body = archive.extractfile(member) if member.isfile() and not hidden else None
                if body is not None:
                    yield member.name, body.read()
    except (tarfile.TarError, OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        raise DataError(f"{path.name} is not a complete archive ({error}): fetch it again") from None
