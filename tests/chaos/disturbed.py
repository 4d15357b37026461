"""Work that something happens to: in a forked process, so that it begins at once and can be killed at any moment."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import signal
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from safetensors.torch import load

SEED = int(os.environ.get("WEFT_CHAOS_SEED", "0"))
KILLS = int(os.environ.get("WEFT_CHAOS_KILLS", "8"))  # of each kind of work
TIMES = {"seconds", "tokens_per_second", "time", "at", "milliseconds"}


class Ended:
    """How a process ended: its exit code (negative: the signal), and what it said."""

    def __init__(self, code: int, said: str) -> None:
        self.code, self.said = code, said

    def __repr__(self) -> str:
        return f"exit {self.code}: {self.said[-2000:]}"


def start(work: Callable[[], Any], said: Path, user: int | None = None) -> int:
    """Run the work in a process of its own, as another user if need be; gives its id.

    It ends with 0, with 2 after a WeftError (whose sentence it writes to the file), with 130 after Ctrl-C, else with 1.
    """
    from weft.foundation.errors import WeftError

    said.write_text("")
    said.chmod(0o666)
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if user is not None:
            os.setgroups([])
            os.setgid(user)
            os.setuid(user)
        work()
        code = 0
    except WeftError as error:
        said.write_text(str(error))
        code = 2
    except KeyboardInterrupt:
        code = 130
    except BaseException:
        said.write_text(traceback.format_exc())
    finally:
        os._exit(code)


def wait(child: int, said: Path, seconds: float = 120) -> Ended:
    """Until it has ended; one that hangs is ended by force, and the test fails."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            return Ended(os.waitstatus_to_exitcode(status), said.read_text())
        time.sleep(0.002)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    raise AssertionError(f"it did not end within {seconds} seconds")


def run(work: Callable[[], Any], place: Path, user: int | None = None, seconds: float = 120) -> Ended:
    """The work, undisturbed."""
    said = place / f"said-{random.getrandbits(40)}"
    ended = wait(start(work, said, user), said, seconds)
    said.unlink()
    return ended


def kill_often(
    work: Callable[[], Any], place: Path, name: str, longest: float, again: Callable[[], Any], check: Callable[[], None]
) -> int:
    """Kill the work at random moments while it does something, then let it end; how many processes that took.

    A process that ended before its moment was not killed: then `again` makes the work begin anew. `check` is called
    after each kill.
    """
    drawn, said, killed, started = random.Random(f"{SEED} {name}"), place / "said", 0, 0
    while killed < KILLS:
        child = start(work, said)
        time.sleep(drawn.uniform(0, longest))
        os.kill(child, signal.SIGKILL)
        ended = Ended(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), said.read_text())
        assert ended.code in (0, -signal.SIGKILL), ended
        started += 1
        assert started < 40 * KILLS, f"only {killed} of {started} processes were killed while they worked"
        if ended.code == 0:
            again()
            continue
        killed += 1
        check()
    ended = run(work, place)
    assert ended.code == 0, ended
    return started


def timed(work: Callable[[], Any], place: Path) -> float:
    """The work undisturbed, for its result; the seconds it takes."""
    began = time.monotonic()
    ended = run(work, place)
    assert ended.code == 0, ended
    return time.monotonic() - began


def contents(folder: Path, but: tuple[str, ...] = ()) -> dict[str, str]:
    """Digest of each file below the folder; of metrics, of what was validated; of training states, of the tensors.

    States also hold the seconds so far, and other rows of metrics the mean loss since the last row or the last resume.
    """
    found = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if not path.is_file() or path.name == ".lock" or name in but:
            continue
        data = path.read_bytes()
        if path.name == "metrics.jsonl":
            rows = [_without_times(json.loads(line)) for line in data.splitlines()]
            data = json.dumps([row for row in rows if "validation" in row or "metrics" in row]).encode()
        if path.parent.name == "training":
            data = b"".join(name.encode() + tensor.numpy().tobytes() for name, tensor in sorted(load(data).items()))
        found[name] = hashlib.sha256(data).hexdigest()
    return found


def _without_times(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {name: _without_times(value) for name, value in tree.items() if name not in TIMES}
    return tree


@contextlib.contextmanager
def small_disk(place: Path, size: int) -> Iterator[Path]:
    """A disk of so many bytes (root only)."""
    place.mkdir()
    if os.system(f"mount -t tmpfs -o size={size} none '{place}' 2> /dev/null") != 0:
        import pytest

        pytest.skip("a small disk cannot be mounted here: it needs root")
    try:
        yield place
    finally:
        os.system(f"umount -l '{place}'")
