"""What processes of one machine tell each other by files in the folder that their agent made, before torch is loaded.

A process that fails for a reason that another try would meet again leaves a note: processes that are started after it
end at once. The first process that tells of a failure leaves another: the others stay silent.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from weft.foundation.errors import WeftError

GIVE_UP = "WEFT_GIVE_UP"  # set where the launcher reads the note itself: it needs no exit code of later processes
NOTE, TOLD = "weft-gave-up", "weft-told"
FAILED, USER_ERROR, INTERRUPTED = 1, 2, 130  # exit codes, as those of the command


class SilentExit(SystemExit):
    """This process ends because another one failed, which has told why."""


def give_up(code: int) -> None:
    """Let processes that are started after this one end at once, with this exit code."""
    if (folder := _folder()) is not None:
        with contextlib.suppress(OSError):
            (folder / NOTE).write_text(str(code), encoding="utf-8")


def expect_another_try() -> None:
    """End at once where a process before this one gave up."""
    folder = _folder()
    code = None if folder is None else read_note(folder)
    if code is not None:
        raise SilentExit(0 if GIVE_UP in os.environ else code)


def read_note(folder: Path) -> int | None:
    """The exit code in the note in an agent's folder, if there is one."""
    with contextlib.suppress(OSError, ValueError):
        return int((folder / NOTE).read_text(encoding="utf-8"))
    return None


def tells_here() -> bool:
    """Whether this process is the first of this machine, since they were started, that tells of a failure."""
    folder = _folder()
    if folder is None:
        return True
    try:
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        (folder / f"{TOLD}-{attempt}-{os.environ.get('MASTER_PORT')}").touch(exist_ok=False)
    except FileExistsError:
        return False
    except OSError:
        return True
    return True


@contextlib.contextmanager
def same_on_all() -> Iterator[None]:
    """Errors of users inside, before processes have met, are told by one process of a machine and end them all."""
    try:
        yield
    except WeftError:
        if _folder() is None:
            raise
        give_up(USER_ERROR)
        if not tells_here():
            raise SilentExit(USER_ERROR) from None
        raise


def _folder() -> Path | None:
    """The folder of this machine's agent: it names a file in FOLDER/attempt_N/RANK to each of its processes."""
    file = os.environ.get("TORCHELASTIC_ERROR_FILE")
    folders = Path(file).parents if file else ()
    return folders[2] if len(folders) > 2 and folders[2].is_dir() else None
