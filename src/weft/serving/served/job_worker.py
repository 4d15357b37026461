"""The worker of a run that answers at once: a thread that takes one request after the other, one input at a time."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from weft.serving.served.tickets import TextInterrupted
from weft.serving.web.errors import ApiError

Answer = TypeVar("Answer")


class JobWorker:
    """First come, first served; `queue` requests may wait."""

    def __init__(self, queue: int) -> None:
        self.queue, self.pending = queue, 0
        self.reason = ""  # why all jobs are to end
        self._thread = ThreadPoolExecutor(1, "weft answers")
        self._cancelled: set[threading.Event] = set()

    @property
    def ready(self) -> bool:
        """Whether requests would be answered."""
        return True

    @property
    def open(self) -> int:
        """Requests that are answered or wait."""
        return self.pending

    def start(self) -> None:
        """Nothing to start: the thread begins with the first job."""

    async def answer_each(self, inputs: Sequence[Any], answer: Callable[[Any], Answer]) -> list[Answer]:
        """The answer to each input, computed in the thread; between two inputs it looks whether anyone still waits."""
        if self.pending > self.queue:
            raise ApiError(
                429, f"{self.pending} requests wait already: try again later", code="queue_full", retry_after=1
            )
        cancelled = threading.Event()

        def work() -> list[Answer]:
            found = []
            for one in inputs:
                if cancelled.is_set():
                    raise TextInterrupted(self.reason or "cancelled")
                found.append(answer(one))
            return found

        self.pending += 1
        self._cancelled.add(cancelled)
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work)
        finally:
            cancelled.set()
            self._cancelled.discard(cancelled)
            self.pending -= 1

    def interrupt(self, reason: str) -> None:
        """End all jobs after the input that is being answered."""
        self.reason = reason
        for event in list(self._cancelled):
            event.set()

    def close(self) -> None:
        """Wait for the input that is being answered, then end the thread."""
        self.interrupt("the server is closed")
        self._thread.shutdown(cancel_futures=True)
