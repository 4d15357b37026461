"""A folder that is whole or not there: written beside its place, and put there when all is done."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from weft.checkpoints.atomic import DiskError, lock_folder


@contextlib.contextmanager
def fresh_folder(out: Path, doing: str) -> Iterator[Path]:
    """A folder beside `out` that takes its place at the end; on any error, or after a kill, nothing is left in `out`.

    It is called by what is being done there (`.runs.importing`). What a killed process left beside it is removed by the
    next; a folder that holds something is never replaced.
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
