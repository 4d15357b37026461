"""A failure of any process is told once, with its rank and reason, and ends all of them.

The first process that fails says so in the store that all share; the others, which then lose their connections to it,
stay silent. Where a process hangs or is killed, the others say which one.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any, TypeVar

from torch.distributed import DistError

from weft.foundation.errors import WeftError
from weft.training.parallel.processes.give_up import FAILED, INTERRUPTED, USER_ERROR, SilentExit, give_up, tells_here
from weft.training.parallel.world import ProcessesLost, World

PATIENCE = 3.0  # seconds in which processes that are alive notice a lost connection, or that nobody answers
LOST = ("connection", "timed out", "timeout", "peer", "socket", "gloo", "nccl")
SIGNALS = (signal.SIGINT, signal.SIGTERM)
T = TypeVar("T")


@contextlib.contextmanager
def tell_once(world: World) -> Iterator[None]:
    """Around the work of a process: what goes wrong becomes one sentence of one process."""
    try:
        yield
    except KeyboardInterrupt:
        if world.leads:
            raise
        raise SilentExit(INTERRUPTED) from None
    except SystemExit:
        raise
    except BaseException as error:
        if _is_lost(error):
            _ignore(SIGNALS)  # the agent ends those that are left, but they have to tell
            _leave_threads_behind()
            raise _lost(world) from None
        if not _claims(world):
            raise SilentExit(FAILED) from None
        own = _of_user(error)
        give_up(FAILED if own is None else USER_ERROR)
        if own is not None:
            raise WeftError(f"rank {world.rank} of {world.size}: {own}") from None
        error.add_note(f"rank {world.rank} of {world.size}")
        raise
    finally:
        world.pulse.stop()


@contextlib.contextmanager
def end_by_signals() -> Iterator[None]:
    """Inside, Ctrl-C stops once, and SIGTERM, by which an agent ends its processes, silently.

    A launcher passes on what its processes got from the terminal already: the second signal changes nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, _: Any) -> None:
        _ignore(SIGNALS)
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        raise SilentExit(128 + number)

    before = [signal.signal(number, handle) for number in SIGNALS]
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        _ignore(SIGNALS)
        raise
    except BaseException:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        raise
    for number, earlier in zip(SIGNALS, before, strict=True):
        signal.signal(number, earlier)


def _ignore(numbers: Sequence[signal.Signals]) -> None:
    if threading.current_thread() is threading.main_thread():
        for number in numbers:
            signal.signal(number, signal.SIG_IGN)


def _leave_threads_behind() -> None:
    """Let this process end without its threads: those that write a state may wait for processes that are gone."""

    def end() -> None:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        os._exit(FAILED)

    threading._register_atexit(end)  # type: ignore[attr-defined]  # atexit comes after threads have ended


def _is_lost(error: BaseException) -> bool:
    """Whether the error says that other processes cannot be reached, not that something is wrong here."""
    inner = getattr(error.__context__, "failures", None)  # a state that could not be written, by torch's checkpoints
    if isinstance(error, WeftError) and inner:
        return any(_is_lost(failure[0]) for failure in inner.values())
    if isinstance(error, ProcessesLost | DistError):
        return True
    return isinstance(error, RuntimeError) and any(word in str(error).lower() for word in LOST)


def _of_user(error: BaseException) -> str | None:
    """The sentence for an error that a user can mend; None for all others."""
    if isinstance(error, WeftError):
        return str(error)
    if isinstance(error, OSError):
        where = error.filename or "the output"
        return str(WeftError(f"cannot read or write {where}: {error.strerror}; check disk and path"))
    return None


def _claims(world: World) -> bool:
    """Whether this process is the first to tell; without the store, the first of its machine."""
    own = str(world.rank)
    first = _within(PATIENCE, lambda: world.store.compare_set("failed", "", own).decode())
    return tells_here() if first is None else first == own


def _lost(world: World) -> BaseException:
    """What this process ends with after others were lost."""
    silent = _within(3 * PATIENCE, lambda: _silent_ranks(world))
    if not _claims(world):
        return SilentExit(FAILED)
    return ProcessesLost(f"rank {world.rank} of {world.size}: {_loss(world, silent)}; {_what_next()}")


def _silent_ranks(world: World) -> list[int]:
    """The processes that neither notice that something is wrong nor give signs of life: they hang, or are gone."""
    world.store.set(f"noticed/{world.rank}", "")
    others = [rank for rank in range(world.size) if rank != world.rank]
    before = {rank: world.pulse.count(rank) for rank in others}
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline and not world.store.check(["failed"]):
        time.sleep(0.1)
    unnoticed = [rank for rank in others if not world.store.check([f"noticed/{rank}"])]
    return [rank for rank in unnoticed if world.pulse.count(rank) == before[rank]]


def _loss(world: World, silent: list[int] | None) -> str:
    if silent is None:
        return f"the machine of process 0 ({os.environ.get('MASTER_ADDR')}) does not answer"
    if not silent:
        return "the connection to the other processes was lost"
    named = ", ".join(map(str, silent))
    which = f"process {named} was" if len(silent) == 1 else f"processes {named} were"
    return f"{which} killed, or did not answer for {timedelta(seconds=round(world.timeout))}"


def _what_next() -> str:
    left = int(os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0")) - int(
        os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    )
    if left > 0:
        return "starting again from the last good state"
    return "the last good state is kept: continue with --resume"


def _within(seconds: float, ask: Callable[[], T]) -> T | None:
    """What the store answers; None if it is gone or does not answer in time, as after a cable was cut."""
    found: list[T] = []

    def work() -> None:
        with contextlib.suppress(Exception):
            found.append(ask())

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(seconds)
    return found[0] if found else None
