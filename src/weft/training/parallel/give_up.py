"""How a process tells its launcher that another try would end the same: by a file, seen before torch is loaded."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

GIVE_UP = "WEFT_GIVE_UP"  # names the file


def give_up() -> None:
    """Let the launcher start no process again."""
    if GIVE_UP in os.environ:
        with contextlib.suppress(OSError):
            Path(os.environ[GIVE_UP]).touch()


def has_given_up() -> bool:
    """Whether a process before this one gave up."""
    return GIVE_UP in os.environ and Path(os.environ[GIVE_UP]).exists()
