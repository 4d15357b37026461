"""A folder that nobody but the user can write: what is loaded as code has to come from such a one."""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path

OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


class NotPrivateError(OSError):
    """A folder in which others could put files of their own; the sentence names it and the remedy."""


def private_folder(path: Path) -> Path:
    """Make the folder with mode 0700, or refuse it if it is another user's or lies where others can exchange it.

    Where others could write into a folder of the user's own until now, what stands in it is removed.
    """
    if not path.is_absolute():
        raise NotPrivateError(f"{path} is no absolute path")
    path.parent.mkdir(parents=True, exist_ok=True)
    for parent in {*path.parents, *path.parent.resolve().parents, path.parent.resolve()}:
        _expect_trusted(parent)
    path.mkdir(mode=0o700, exist_ok=True)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise NotPrivateError(f"{path} is not a folder of yours")
    if found.st_mode & OTHERS_WRITE:
        path.chmod(0o700)
        for left in path.iterdir():
            shutil.rmtree(left) if left.is_dir() and not left.is_symlink() else left.unlink()
    elif found.st_mode & 0o777 != 0o700:
        path.chmod(0o700)
    return path


def _expect_trusted(folder: Path) -> None:
    """Folders above: the system's or the user's, and writable by others only if these cannot exchange what is in it."""
    found = folder.stat()
    if found.st_uid not in (0, os.getuid()):
        raise NotPrivateError(f"{folder} belongs to another user")
    own_group = found.st_gid == found.st_uid != 0  # a group of this user alone, as many systems give to each
    writers = OTHERS_WRITE & ~(stat.S_IWGRP if own_group else 0)
    if found.st_mode & writers and not found.st_mode & stat.S_ISVTX:
        raise NotPrivateError(f"others can write into {folder}")
