"""Atomic files and folders: the old one or the new one, complete, whatever happens (kill -9, a full disk)."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from weft.foundation.errors import WeftError

_READING_MASK = threading.Lock()


class DiskError(WeftError):
    """A file that cannot be written or read; what was there before is still there."""


def write_atomic(path: Path, write: Callable[[Path], None]) -> None:
    """`write` to a temporary file beside it, flush it to the disk, then rename it into place; links are followed."""
    path = Path(os.path.realpath(path))
    fresh = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        write(fresh)
        fresh.chmod(0o666 & ~_umask())
        _flush(fresh)
        os.replace(fresh, path)
        _flush(path.parent)
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
    import fcntl

    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.seek(0)
            owner = file.read().strip() or "unknown"
            raise DiskError(
                f"{folder} is being written by process {owner}: wait for it, or choose another --out"
            ) from None
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


@contextlib.contextmanager
def atomic_folder(out: Path, doing: str) -> Iterator[Path]:
    """A temporary folder that becomes `out` at the end; after an error or a kill, nothing is left in `out`.

    It is named after what is being done (`.runs.importing`). What a killed process left there is removed by the next
    one; a folder that is not empty is never replaced.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise DiskError(f"{out} is there already: choose another --out, or remove it first")
    fresh = out.parent / f".{out.name}.{doing}"
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with lock_folder(fresh):
            for left in fresh.iterdir():
                if left.is_dir():
                    shutil.rmtree(left)
                elif left.name != ".lock":
                    left.unlink()
            try:
                yield fresh
                (fresh / ".lock").unlink(missing_ok=True)
                os.replace(fresh, out)
            finally:
                shutil.rmtree(fresh, ignore_errors=True)
    except OSError as error:
        raise DiskError(f"cannot write {out}: {error.strerror or error}; choose another --out") from None


def _flush(path: Path) -> None:
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
