"""Handles: where the answer to a request is read while it is being generated, from any thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Literal, Protocol, Self

from torch import Tensor

from weft.foundation.errors import WeftError
from weft.inference.decoding.generated import GeneratedText, GeneratedToken, PromptScore
from weft.inference.engine.requests import Cancelled, EngineRequest

Status = Literal["waiting", "prefilling", "decoding", "done", "cancelled", "failed"]
OPEN: tuple[Status, ...] = ("waiting", "prefilling", "decoding")


class EngineDriver(Protocol):
    """What a handle needs of its engine."""

    @property
    def running(self) -> bool:
        """Whether it steps by itself, in a thread of its own."""
        ...

    def advance(self) -> bool:
        """One step, in the thread of the caller."""
        ...

    def withdraw(self, handle: GenerationHandle) -> None:
        """A cancelled request waits no longer."""
        ...


class GenerationHandle:
    """A request that was submitted; safe to use from any thread, and from several.

    Iterating gives each `GeneratedToken` as soon as it is there, from the first, and can be repeated. Without an
    engine that runs in the background, waiting steps the engine. As a context manager it cancels what is not finished.
    `prompt_scores`: one per token of the prompt, complete with the first token or at the end, if the request asks.
    """

    def __init__(self, request: EngineRequest, number: int, engine: EngineDriver) -> None:
        self.request, self.number = request, number
        self.status: Status = "waiting"
        self.error: BaseException | None = None
        self.prompt_scores: list[PromptScore] = []
        self._engine = engine
        self._steps: list[GeneratedToken] = []
        self._alignments: list[Tensor] = []
        self._lock = threading.Lock()
        self._changed, self._over = threading.Condition(self._lock), threading.Condition(self._lock)

    @property
    def open(self) -> bool:
        """Whether more tokens may come."""
        return self.status in OPEN

    def __iter__(self) -> Iterator[GeneratedToken]:
        count = 0
        while True:
            self._wait(self._changed, partial(self._has, count))
            if count == len(self._steps):
                self._raise()
                return
            yield self._steps[count]
            count += 1

    def given(self, first: int = 0) -> list[GeneratedToken]:
        """The tokens that are there, from number `first` on, without waiting and without a step of the engine."""
        with self._lock:
            return self._steps[first:]

    def pieces(self) -> Iterator[str]:
        """The text, piece by piece, if the request has a detokenizer."""
        if self.request.detokenizer is None:
            raise WeftError("this request gives tokens only: give it a `detokenizer` to read them as text")
        return (step.text for step in self if step.text)

    def result(self, timeout: float | None = None) -> GeneratedText:
        """The text, once it is finished; raises what made it fail, or TimeoutError after `timeout` seconds."""
        if not self._wait(self._over, lambda: not self.open, timeout):
            raise TimeoutError(f"request {self.number} is not finished after {timeout} seconds")
        self._raise()
        text = None if self.request.detokenizer is None else "".join(step.text for step in self._steps)
        if not self._steps:
            return GeneratedText([], [], "length", 0.0, text=text)
        return GeneratedText.of(self._steps, self.request.stop, self._alignments, text=text)

    def cancel(self) -> bool:
        """Stop it; False if it was over already. The tokens generated so far can still be iterated."""
        cancelled = self.close("cancelled", Cancelled(f"request {self.number} was cancelled"))
        if cancelled:
            self._engine.withdraw(self)
        return cancelled

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.cancel()

    def give(self, step: GeneratedToken, alignment: Tensor | None = None) -> bool:
        """The engine's side: the next token; False if no more is wanted."""
        with self._lock:
            if not self.open:
                return False
            self._steps.append(step)
            if alignment is not None:
                self._alignments.append(alignment)
            self.status = "decoding" if step.finish_reason is None else "done"
            self._changed.notify_all()
            if step.finish_reason is not None:
                self._over.notify_all()
        return step.finish_reason is None

    def finish(self) -> bool:
        """The engine's side: nothing was to be generated, and the prompt was read; False if it was over already."""
        with self._lock:
            if not self.open:
                return False
            self.status = "done"
            self._changed.notify_all()
            self._over.notify_all()
        return True

    def close(self, status: Literal["cancelled", "failed"], error: BaseException) -> bool:
        """The engine's side: end without an answer; False if it was over already."""
        with self._lock:
            if not self.open:
                return False
            self.status, self.error = status, error
            self._changed.notify_all()
            self._over.notify_all()
        return True

    def begin(self) -> None:
        """The engine's side: its prompt is being read."""
        with self._lock:
            if self.status == "waiting":
                self.status = "prefilling"

    def _has(self, count: int) -> bool:
        return len(self._steps) > count or not self.open

    def _raise(self) -> None:
        if self.error is not None:
            raise self.error

    def _wait(self, sign: threading.Condition, ready: Callable[[], bool], timeout: float | None = None) -> bool:
        deadline = None if timeout is None else time.monotonic() + timeout
        while not ready():
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                return False
            if self._engine.running:
                with sign:
                    sign.wait_for(lambda: ready() or not self._engine.running, left)
            else:
                self._engine.advance()
        return True
