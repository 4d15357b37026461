"""Atomic files and folders: the old one or the new one, complete, whatever happens (kill -9, a full disk)."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from weft.foundation.errors import WeftError
from weft.foundation.files.regular_files import expect_regular

_READING_MASK = threading.Lock()
LEFTOVER = re.compile(r"\..+\.\d+\.new")


class DiskError(WeftError):
    """A file that cannot be written or read; what was there before is still there."""


def write_atomic(path: Path, write: Callable[[Path], None]) -> None:
    """`write` to a temporary file beside it, flush it to the disk, then rename it into place; links are followed.

    What is no file is never replaced: who may write everywhere would put a file in the place of /dev/null.
    """
    path = expect_regular(Path(os.path.realpath(path)), DiskError)
    fresh = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        write(fresh)
        fresh.chmod(0o666 & ~_umask())
        flush_to_disk(fresh)
        os.replace(fresh, path)
        flush_to_disk(path.parent)
    except OSError as error:
        raise _explain(path, error) from None
    finally:
        with contextlib.suppress(OSError):
            fresh.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """A text file, atomically."""
    write_atomic(path, lambda fresh: fresh.write_text(text, encoding="utf-8", newline=""))  # type: ignore[arg-type]


def expect_other_file(out: Path, inputs: Iterable[str | Path]) -> None:
    """Refuse to write over a file that is read: `weft look RUN seven.png --out seven.png` would lose it."""
    for given in inputs:
        with contextlib.suppress(OSError, ValueError):  # a text, not a path; or one that is not there yet
            if os.path.samefile(out, given):
                raise DiskError(f"{out} is the input, and would be overwritten: choose another file to write")


@contextlib.contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Lock the folder for writing; a second process is refused. The system releases the lock even after a kill."""
    folder.mkdir(parents=True, exist_ok=True)
    handle = _lock(folder / ".lock", folder)
    try:
        yield
    finally:
        os.close(handle)


@contextlib.contextmanager
def atomic_folder(out: Path, doing: str) -> Iterator[Path]:
    """A temporary folder that becomes `out` at the end; after an error or a kill, nothing is left in `out`.

    It is named after what is being done (`.runs.importing`) and locked by a file beside it, until it is in its place.
    What a killed process left there is removed by the next one; a folder that is not empty is never replaced.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise DiskError(f"{out} is there already: choose another --out, or remove it first")
    fresh = out.parent / f".{out.name}.{doing}"
    lock = fresh.with_name(f"{fresh.name}.lock")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        handle = _lock(lock, out)
        try:
            shutil.rmtree(fresh, ignore_errors=True)
            fresh.mkdir()
            yield fresh
            for inside in fresh.rglob("*"):
                flush_to_disk(inside)
            os.replace(fresh, out)
            flush_to_disk(out.parent)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
            lock.unlink(missing_ok=True)
            os.close(handle)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DiskError(f"the disk is full, so {out} was not written: free some space") from None
        raise DiskError(f"cannot write {out}: {error.strerror or error}; choose another --out") from None


def _lock(path: Path, what: Path) -> int:
    """The handle of a lock file that this process holds until it closes it; refused while another one does.

    A holder may have removed the file since it was opened here: then what was locked is no lock any more.
    """
    import fcntl

    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            owner = os.read(handle, 20).decode("ascii", "replace").strip() or "unknown"
            os.close(handle)
            raise DiskError(
                f"{what} is being written by process {owner}: wait for it, or choose another --out"
            ) from None
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(handle), path.stat()):
                break
        os.close(handle)
    with contextlib.suppress(OSError):  # who holds it is only told to others: a full disk is no reason to stop
        os.ftruncate(handle, 0)
        os.pwrite(handle, str(os.getpid()).encode(), 0)
    return handle


def remove_leftovers(folder: Path) -> None:
    """Remove the temporary files of `write_atomic` that a killed process left; the folder must be locked."""
    for left in folder.glob(".*.new"):
        if left.is_file() and LEFTOVER.match(left.name):
            with contextlib.suppress(OSError):
                left.unlink()


def flush_to_disk(path: Path) -> None:
    """What was written to a file, or which files a folder holds, survives a loss of power from now on."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _umask() -> int:
    """The process's mask, which can be read only by setting it: one thread at a time."""
    with _READING_MASK:
        mask = os.umask(0)
        os.umask(mask)
    return mask


def _explain(path: Path, error: OSError) -> DiskError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DiskError(
            f"the disk is full, so {path.name} was not written; the last good state is kept: free some space"
        )
    return DiskError(f"cannot write {path}: {error.strerror or error}; choose a folder that can be written")
