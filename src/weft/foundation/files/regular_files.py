"""Files that are files: a pipe gives its contents once, or makes its reader wait for ever; a device never ends."""

from __future__ import annotations

import stat
from pathlib import Path

from weft.foundation.errors import WeftError


def expect_regular(path: Path, error: type[WeftError] = WeftError) -> Path:
    """The path, unless it is a pipe, a socket or a device. What is not there is left to who opens it."""
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):
        return path
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise error(f"{path} is a pipe or a device, and a file is needed: choose one, or write into one what it gives")
    return path
