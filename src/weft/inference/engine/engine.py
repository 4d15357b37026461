"""The engine: continuous batching. Requests come and go at any time; all that are being written share each step.

    with Engine(model, slots=16) as engine:
        handle = engine.submit(EngineRequest(prompt, max_tokens=80))
        for step in handle: ...

What a text becomes is what `generate` makes of it alone: not a matter of its company, its slot, the order of arrival or
who was cancelled. First come, first served; a step reads at most `tokens` prompt tokens, so that a long prompt holds
nobody up, and then writes one token of every text. Memory is bounded: `slots` texts of `length` tokens.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from itertools import count
from typing import Literal, Self

import torch
from torch import nn

from weft.foundation.errors import WeftError
from weft.inference.decoding.conditioning import declared, eval_mode
from weft.inference.engine.requests import Cancelled, EngineRequest, EngineStopped, GenerationHandle, QueueFull
from weft.inference.engine.running_batch import EngineStatistics, RunningBatch
from weft.inference.engine.slots import Slots

__all__ = ["Cancelled", "Engine", "EngineRequest", "EngineStatistics", "EngineStopped", "GenerationHandle", "QueueFull"]


class Engine:
    """Up to `slots` texts at once, `waiting` more in a queue; `tokens` of their prompts are read a step.

    `length`: how many tokens a text may have, prompt and new ones; as many as the model was trained for if not given,
    and more only where its positions go on. `source_length`: the same for sources. `prefixes`: so many beginnings are
    kept, so that prompts which share one read it once; each prompt is then read by itself. As a context it runs in a
    thread of its own, and leaving it cancels what is open; without, `step()` moves it, or waiting for a handle does.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        slots: int = 16,
        waiting: int = 256,
        tokens: int = 256,
        length: int | None = None,
        source_length: int | None = None,
        prefixes: int = 0,
    ) -> None:
        self.model, self.declaration = model, declared(model)
        if slots < 1 or tokens < 1 or waiting < 0 or prefixes < 0:
            raise WeftError(
                f"an engine of {slots} slots, {tokens} tokens a step, {waiting} waiting and {prefixes} prefixes: "
                "slots and tokens must be at least 1, waiting and prefixes at least 0"
            )
        if prefixes and self.declaration.seq2seq:
            raise WeftError("texts of an encoder-decoder share nothing, each has its own source: use prefixes=0")
        self.waiting = waiting
        self.length, self.source_length = self._longest(length), self._longest(source_length)
        source = self.source_length if self.declaration.seq2seq else 0
        places = Slots(model, slots, self.length + (self.declaration.prefix or 0), source)
        self._batch = RunningBatch(model, places, tokens, prefixes)
        self._parts = list(model.modules())
        self._queue: deque[GenerationHandle] = deque()
        self._taken: list[GenerationHandle] = []  # out of the queue, as of the last step or since
        self._numbers = count()
        self._open = 0
        self._stopped: str | None = None
        self._thread: threading.Thread | None = None
        self._changed = threading.Condition()  # guards the queue, the number of open requests and the end
        self._stepping = threading.Lock()  # guards the batch

    def _longest(self, length: int | None) -> int:
        known = self.declaration.length
        longest = known if length is None else length
        if longest is None or longest < 1:
            raise WeftError(f"texts of {longest} tokens: give the engine a `length` of at least 1")
        if known is not None and longest > known and self.declaration.positions == "absolute":
            raise WeftError(f"texts of {longest} tokens, but the model knows {known} positions: use at most that")
        return longest

    def submit(self, request: EngineRequest) -> GenerationHandle:
        """Ask for a text, from any thread; refused if it can never be done, or if too many wait."""
        request.expect_fit(self.declaration, self.length, self.source_length)
        slots = self._batch.slots.count
        with self._changed:
            if self._stopped is not None:
                raise EngineStopped(f"{self._stopped}: make a new engine")
            if self._open >= slots + self.waiting:
                self._batch.counts.refused += 1
                raise QueueFull(
                    f"{self._open} requests are open, but this engine writes {slots} at once and lets {self.waiting} "
                    "wait: try again later, or make an engine with a longer queue (waiting)"
                )
            handle = GenerationHandle(request, next(self._numbers), self)
            self._queue.append(handle)
            self._open += 1
            self._changed.notify_all()
        return handle

    def step(self) -> bool:
        """Read some of the prompts, write one token of every text; False once nothing is left to do."""
        if self.running:
            raise WeftError("this engine moves by itself: leave step() out, or use the engine without `with`")
        return self.advance()

    def run(self) -> None:
        """Steps until nothing is left to do."""
        while self.step():
            pass

    @property
    def running(self) -> bool:
        """Whether it moves by itself, in a thread of its own."""
        return self._thread is not None and self._stopped is None

    @property
    def statistics(self) -> EngineStatistics:
        """As of now."""
        reading = self._batch.reading
        return replace(
            self._batch.counts,
            waiting=len(self._queue),
            reading=0 if reading is None else len(reading.handles),
            writing=len(self._batch.sequences),
        )

    def advance(self) -> bool:
        """One step in the thread of the caller; whether anything is left to do. If it breaks, so does the engine."""
        with self._stepping:
            if self._stopped is not None:
                return False
            resting = eval_mode(self.model) if any(part.training for part in self._parts) else nullcontext()
            try:
                with resting, torch.inference_mode():
                    self._batch.step(self._take)
            except BaseException as error:
                self._halt(f"this engine broke ({type(error).__name__}: {error})")
                self._batch.counts.failed += self._abandon("failed", error)
                raise
            with self._changed:
                self._taken = self._batch.handles
                self._open = len(self._queue) + len(self._taken)
                return self._open > 0

    def withdraw(self, handle: GenerationHandle) -> None:
        """A cancelled handle waits no longer; where it is being written, it leaves at the next step."""
        with self._changed:
            self._batch.counts.cancelled += 1
            if handle in self._queue:
                self._queue.remove(handle)
                self._open -= 1

    def __enter__(self) -> Self:
        with self._changed:
            if self._stopped is not None or self._thread is not None:
                raise EngineStopped(f"{self._stopped or 'this engine runs already'}: make a new engine")
            self._thread = threading.Thread(target=self._live, name="weft engine", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop after the step that is being done, cancel what is open, give the memory back."""
        self._halt("this engine is closed")
        if self._thread is not None:
            self._thread.join()
        with self._stepping:
            self._batch.counts.cancelled += self._abandon("cancelled", Cancelled("the engine was closed"))

    def _live(self) -> None:
        """The thread: a step whenever there is something to do."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._open > 0 or self._stopped is not None)
                if self._stopped is not None:
                    return
            try:
                self.advance()
            except BaseException:  # every handle and the next submit() tell of it
                return

    def _take(self, fits: Callable[[EngineRequest], bool]) -> GenerationHandle | None:
        """The first of the queue, if it fits."""
        with self._changed:
            if not self._queue or not fits(self._queue[0].request):
                return None
            handle = self._queue.popleft()
            self._taken.append(handle)
        handle.begin()
        return handle

    def _halt(self, reason: str) -> None:
        with self._changed:
            self._stopped = self._stopped or reason
            self._changed.notify_all()

    def _abandon(self, status: Literal["cancelled", "failed"], error: BaseException) -> int:
        """End all that is open; how many there were. Their memory is given back."""
        with self._changed:
            handles = [*self._taken, *self._queue]
            self._queue.clear()
            self._taken.clear()
            self._open = 0
        self._batch.forget()
        return sum(handle.close(status, error) for handle in handles)
