"""Archives: the files of a tar or zip, read one by one without unpacking it.

An archive of a few bytes can stand for any amount: names are looked at before contents are read, and neither a file in
it nor what describes a file may be larger than a limit.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, Self, cast

from weft.data.readers.files import DataError
from weft.foundation.files.regular_files import expect_regular

ARCHIVE_SUFFIXES = (".tar", ".tgz", ".tar.gz", ".txz", ".tar.xz", ".tar.bz2", ".zip")
LARGEST_MEMBER = 256 << 20  # bytes; more than an encoded picture has
AFTER_END = 1 << 20  # bytes; zeros that fill up the last record of a tar are fewer
MOST_MEMBERS = 10_000_000
OPENERS: tuple[tuple[bytes, Callable[[Path], Any]], ...] = (
    (b"\x1f\x8b", gzip.open),
    (b"BZh", bz2.open),
    (b"\xfd7zXZ\x00", lzma.open),
)


def is_archive(path: Path) -> bool:
    """Whether the file name is that of a tar or zip."""
    return path.name.lower().endswith(ARCHIVE_SUFFIXES)


def read_members(path: Path, wanted: Callable[[str], bool]) -> Iterator[tuple[str, bytes]]:
    """(path, content) of the files in an archive whose names, without folders, are wanted; in order, no hidden ones."""
    if not path.exists():
        raise DataError(f"there is no file {path}: check the path")
    expect_regular(path, DataError)
    try:
        yield from (_zip_members if path.suffix.lower() == ".zip" else _tar_members)(path, wanted)
    except (tarfile.TarError, zipfile.BadZipFile, OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        raise DataError(f"{path.name} is not a complete archive ({str(error)[:200]}): fetch it again") from None
    except (RuntimeError, NotImplementedError) as error:  # encrypted, or compressed in a way that zipfile lacks
        raise DataError(f"{path.name} cannot be read ({str(error)[:200]}): unpack it, and give its folder") from None
    except (ValueError, OverflowError) as error:  # numbers in headers that no file can have
        raise DataError(f"{path.name} is not a readable archive ({str(error)[:200]}): do not trust it") from None


class _BoundedReader:
    """A stream that refuses to give much at once: the header of a tar says how long the name is that follows."""

    def __init__(self, stream: IO[bytes], name: str) -> None:
        self.stream, self.name = stream, name

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= LARGEST_MEMBER + tarfile.BLOCKSIZE:
            raise DataError(f"{self.name} has a header of {size:,} bytes, which no archive has: do not trust it")
        return self.stream.read(size)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


class _SoundHeader(tarfile.TarInfo):
    """A header of a member; a damaged one is an error, where the module takes it for the end of the archive."""

    @classmethod
    def fromtarfile(cls, archive: tarfile.TarFile) -> Self:
        try:
            return super().fromtarfile(archive)
        except (tarfile.InvalidHeaderError, tarfile.TruncatedHeaderError) as error:  # type: ignore[attr-defined]
            raise tarfile.ReadError(f"a header does not fit its checksum: {error}") from None


def _tar_members(path: Path, wanted: Callable[[str], bool]) -> Iterator[tuple[str, bytes]]:
    with path.open("rb") as file:
        magic = file.read(6)
    opener = next((found for start, found in OPENERS if magic.startswith(start)), lambda path: path.open("rb"))
    with opener(path) as stream, _open_tar(stream, path) as archive:
        for count, member in enumerate(archive):
            archive.members = []  # type: ignore[attr-defined]  # it would hold all headers
            _expect_count(path, count)
            if member.isfile() and _is_wanted(member.name, wanted):
                _expect_size(path, member.name, member.size)
                body = archive.extractfile(member)
                if body is not None:
                    yield member.name, body.read()
        stream.read(AFTER_END)  # where it is compressed, the checksum stands at its end


def _open_tar(stream: IO[bytes], path: Path) -> tarfile.TarFile:
    return tarfile.open(None, "r:", cast(Any, _BoundedReader(stream, path.name)), tarinfo=_SoundHeader)


def _zip_members(path: Path, wanted: Callable[[str], bool]) -> Iterator[tuple[str, bytes]]:
    with zipfile.ZipFile(path) as archive:
        for count, member in enumerate(archive.infolist()):
            _expect_count(path, count)
            if member.filename and not member.is_dir() and _is_wanted(member.filename, wanted):
                _expect_size(path, member.filename, member.file_size)
                with archive.open(member) as body:  # which reads no more than the header says
                    yield member.filename, body.read()


def _is_wanted(name: str, wanted: Callable[[str], bool]) -> bool:
    own = Path(name).name
    return not own.startswith(".") and wanted(own)


def _expect_size(path: Path, name: str, size: int) -> None:
    if size > LARGEST_MEMBER:
        raise DataError(
            f"{path.name}: {name!r:.120} has {size:,} bytes, but at most {LARGEST_MEMBER:,} are read from an archive: "
            "unpack it, and give its folder, if you trust it"
        )


def _expect_count(path: Path, count: int) -> None:
    if count >= MOST_MEMBERS:
        raise DataError(f"{path.name} holds more than {MOST_MEMBERS:,} files: unpack it, and give its folder")
