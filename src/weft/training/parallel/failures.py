"""A failure of any process is told once, with its rank and reason, and ends all of them.

The first process that fails says so in the store that all share; the others, which then lose their connections to it,
stay silent. Where a process hangs, the others say which one did not answer.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from datetime import timedelta

from torch.distributed import DistError

from weft.foundation.errors import WeftError
from weft.training.parallel.give_up import give_up
from weft.training.parallel.world import World

PATIENCE = 3.0  # seconds in which processes that are alive notice a lost connection, or that nobody answers
LOST = ("connection", "timed out", "timeout", "peer", "socket", "gloo", "nccl")


class SilentExit(SystemExit):
    """This process ends because another one failed, which has told why."""


@contextlib.contextmanager
def tell_once(world: World) -> Iterator[None]:
    """Around the work of a process: what goes wrong becomes one sentence of one process."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        if not _is_lost(error):
            if not _claims(world):
                raise SilentExit(1) from None
            give_up()
            if isinstance(error, WeftError):
                raise WeftError(f"rank {world.rank} of {world.size}: {error}") from None
            error.add_note(f"rank {world.rank} of {world.size}")
            raise
        silent = _silent_ranks(world)
        if not _claims(world):
            raise SilentExit(1) from None
        raise WeftError(f"rank {world.rank} of {world.size}: {_loss(world, silent)}") from None


def _is_lost(error: BaseException) -> bool:
    """Whether the error says that other processes cannot be reached, not that something is wrong here."""
    if isinstance(error, WeftError) or not isinstance(error, DistError | RuntimeError):
        return False
    return isinstance(error, DistError) or any(word in str(error).lower() for word in LOST)


def _claims(world: World) -> bool:
    """Whether this process is the first to tell."""
    own = str(world.rank)
    try:
        return world.store.compare_set("failed", "", own).decode() == own
    except Exception:  # the store is gone with its host: somebody has to tell
        return True


def _silent_ranks(world: World) -> list[int]:
    """The processes that do not notice that something is wrong: they hang, or are gone."""
    with contextlib.suppress(Exception):
        world.store.set(f"noticed/{world.rank}", "")
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            if world.store.check(["failed"]):
                break
            time.sleep(0.1)
        return [rank for rank in range(world.size) if not world.store.check([f"noticed/{rank}"])]
    return []


def _loss(world: World, silent: list[int]) -> str:
    if not silent:
        return "the connection to the other processes was lost; continue with --resume"
    named = ", ".join(map(str, silent))
    which = f"process {named} was" if len(silent) == 1 else f"processes {named} were"
    return (
        f"{which} killed, or did not answer for {timedelta(seconds=round(world.timeout))}; "
        "the last good state is kept: continue with --resume"
    )
