"""The worker of a language model: an engine that steps in a thread, and hands new tokens over fifty times a second.

At most one wake-up of the event loop per step, however many texts are generated; the loop never waits for a step.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from weft.inference.decoding.generated import GeneratedToken
from weft.inference.engine.engine import Engine, EngineRequest, EngineStopped
from weft.serving.served.tickets import Ticket
from weft.serving.web.errors import ApiError, invalid_request

LONGEST_WAIT = 60  # seconds that a client is told to wait at most
HAND_OVER = 0.02  # seconds
MOST_FAILURES = 3  # engines that fail one after the other without a finished text, after which the worker gives up
log = logging.getLogger("weft.serving")
Update = tuple[Ticket, list[GeneratedToken], bool, BaseException | None]


class TextWorker:
    """Up to `slots` texts at once and `queue` that wait; more are refused with the time after which to try again."""

    def __init__(self, make_engine: Callable[[], Engine], slots: int, queue: int) -> None:
        self.make_engine, self.slots, self.queue = make_engine, slots, queue
        self.engine = make_engine()
        self.tickets: dict[int, Ticket] = {}
        self.seconds_per_text = 1.0  # a running mean
        self.failures = 0
        self.loop: asyncio.AbstractEventLoop | None = None
        self._wake, self._stopped, self._handed_over = threading.Event(), False, 0.0
        self._thread = threading.Thread(target=self._run, name="weft engine", daemon=True)

    def start(self) -> None:
        """Called in the event loop that tickets belong to."""
        self.loop = asyncio.get_running_loop()
        self._thread.start()

    @property
    def ready(self) -> bool:
        """Whether requests would be answered."""
        return self._thread.is_alive() and self.failures < MOST_FAILURES

    @property
    def open(self) -> int:
        """Texts that are generated or wait."""
        return len(self.tickets)

    def submit(self, requests: Sequence[EngineRequest]) -> list[Ticket]:
        """Tickets for all texts of a request, or none: ApiError 429 where they do not all fit now."""
        if not self.ready:
            raise ApiError(503, "this model has failed: the server must be started again", code="model_failed")
        if len(requests) > self.slots + self.queue:
            raise invalid_request(
                f"{len(requests)} texts, but this server holds {self.slots + self.queue} at once: ask for fewer", "n"
            )
        if self.open + len(requests) > self.slots + self.queue:
            raise ApiError(
                429,
                f"{self.open} texts are open and this server holds {self.slots + self.queue}: try again later",
                code="queue_full",
                retry_after=self._wait(len(requests)),
            )
        tickets: list[Ticket] = []
        try:
            for request in requests:
                ticket = Ticket(self.engine.submit(request), self._forget)
                self.tickets[id(ticket)] = ticket
                tickets.append(ticket)
        except BaseException as error:
            for ticket in tickets:
                ticket.close()
            if isinstance(error, EngineStopped):  # its reason is for the log
                raise ApiError(503, "this model is made again: try again", code="restarting", retry_after=1) from None
            raise
        self._wake.set()
        return tickets

    def _wait(self, texts: int) -> int:
        """Seconds until so many texts may fit, by how long texts took."""
        return max(1, min(LONGEST_WAIT, math.ceil(self.seconds_per_text * texts / self.slots)))

    def interrupt(self, reason: str) -> None:
        """End all texts; their clients are told why."""
        for ticket in list(self.tickets.values()):
            ticket.interrupt(reason)
        self._wake.set()

    def took(self, seconds: float) -> None:
        """A text is finished after so many seconds."""
        self.seconds_per_text += 0.1 * (seconds - self.seconds_per_text)

    def close(self) -> None:
        """Stop the thread after its step, and free the engine's memory."""
        self._stopped = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join()
        self.engine.close()

    def _forget(self, ticket: Ticket) -> None:
        self.tickets.pop(id(ticket), None)
        self._wake.set()  # a cancelled text leaves at the next step

    # --- in the thread ------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stopped:
            self._wake.wait()
            self._wake.clear()
            while not self._stopped and self._step():
                pass

    def _step(self) -> bool:
        """A step of the engine, and what came of it to the event loop; whether anything is left to do."""
        try:
            more = self.engine.step()
            if self.failures and self.engine.statistics.finished:  # steps with nothing to do prove nothing
                self.failures = 0
        except Exception as error:
            log.error("the engine failed and is made again: %s", type(error).__name__, exc_info=error)
            more = self._renew()
        self._hand_over()
        return more

    def _renew(self) -> bool:
        """All texts of an engine that failed are over; another takes its place."""
        self.failures += 1
        time.sleep(0.1 * self.failures)
        if self.failures >= MOST_FAILURES:
            return False
        try:
            self.engine = self.make_engine()
        except Exception as error:
            log.error("no engine can be made: %s", type(error).__name__, exc_info=error)
            self.failures = MOST_FAILURES
            return False
        return True

    def _hand_over(self) -> None:
        """First and last tokens at once, others every `HAND_OVER` seconds: each wake-up of the loop slows the steps."""
        updates: list[Update] = []
        now = time.monotonic()
        due = now - self._handed_over >= HAND_OVER
        if due:
            self._handed_over = now
        for ticket in list(self.tickets.values()):
            over = not ticket.handle.open  # before the tokens are read: all of them are there then
            if not (due or over or ticket.taken == 0):
                continue
            tokens = ticket.handle.given(ticket.taken)
            if tokens or over:
                ticket.taken += len(tokens)
                updates.append((ticket, tokens, over, ticket.handle.error if over else None))
        if updates and self.loop is not None:
            with suppress(RuntimeError):  # the loop is closed: nobody waits
                self.loop.call_soon_threadsafe(_deliver, updates)


def _deliver(updates: Sequence[Update]) -> None:
    for ticket, tokens, over, error in updates:
        ticket.give(tokens, over, error)
