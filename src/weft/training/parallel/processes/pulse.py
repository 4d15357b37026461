"""A sign of life of each process in the store that all share, so that waiting without a limit ends if nobody is there.

Collectives have a time limit of their own. Waiting for a process that reads a corpus or evaluates has none: it takes as
long as it takes, while that process lives.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from torch._C._distributed_c10d import Store

BEAT = 1.0  # seconds between signs of life
GRACE = 15.0  # seconds in which a process whose store is gone ends by itself


class ProcessSilent(RuntimeError):
    """A process has given no sign of life for longer than the timeout."""


class Pulse:
    """Counts up `alive/RANK` in the background until it is stopped.

    Where the store itself does not answer for longer than the timeout, `on_lost` tells, and this process ends: no call
    that waits for the store would return.
    """

    def __init__(self, store: Store, rank: int, timeout: float, on_lost: Callable[[], None]) -> None:
        self.store, self.rank, self.timeout, self.on_lost = store, rank, timeout, on_lost
        self._stopped = threading.Event()
        self._beats = 0
        self._seen: dict[int, tuple[int, float]] = {}

    def start(self) -> None:
        """Give signs from now on."""
        # A connection of its own: another may be blocked by who waits.
        self._own: Any = self.store.clone()  # type: ignore[attr-defined]
        for work in (self._beat, self._watch):
            threading.Thread(target=work, daemon=True, name=f"weft pulse {work.__name__}").start()

    def count(self, rank: int) -> int:
        """The signs of life of a process so far."""
        return self.store.add(f"alive/{rank}", 0)

    def expect_alive(self, rank: int) -> None:
        """Fail if the process has given no sign for longer than the timeout, as seen by repeated calls."""
        now, count = time.monotonic(), self.count(rank)
        before, since = self._seen.get(rank, (-1, now))
        if count != before:
            self._seen[rank] = (count, now)
        elif now - since > self.timeout:
            raise ProcessSilent(f"timed out: process {rank} gave no sign of life for {self.timeout:g} s")

    def stop(self) -> None:
        """No more signs."""
        self._stopped.set()

    def _beat(self) -> None:
        try:
            while not self._stopped.wait(BEAT):
                self._own.add(f"alive/{self.rank}", 1)
                self._beats += 1
        except RuntimeError:
            return  # the store is gone; whoever needs it next says so, or the watch

    def _watch(self) -> None:
        """Counts its own turns, not the clock: a process that was stopped itself and goes on has lost nothing."""
        turns, before = 0, -1
        while not self._stopped.wait(BEAT):
            turns, before = (turns + 1 if self._beats == before else 0), self._beats
            if turns * BEAT > self.timeout + GRACE:
                self.on_lost()
                sys.stderr.flush()
                os._exit(1)
