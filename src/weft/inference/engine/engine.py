"""The engine: continuous batching. Requests come and go at any time; all texts that are decoded share each step.

    with Engine(model, slots=16) as engine:
        handle = engine.submit(EngineRequest(prompt, max_tokens=80))
        for step in handle: ...

A text becomes what it becomes alone, whatever the other texts, its slot, the order of arrival or cancellations; where
the engine is `exact`, with the same log-probabilities, bit for bit. First come, first served; a step reads at most
`prefill_tokens` prompt tokens, so that a long prompt delays nobody, and then generates one token of every text, or more
where it speculates. Memory is bounded: `slots` texts of `length` tokens.
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
from weft.inference.engine.handles import GenerationHandle
from weft.inference.engine.requests import Cancelled, EngineRequest, EngineStopped, QueueFull
from weft.inference.engine.running_batch import RunningBatch
from weft.inference.engine.slots import Slots
from weft.inference.engine.statistics import EngineStatistics
from weft.inference.fast.optimized import decodes_alike

__all__ = ["Cancelled", "Engine", "EngineRequest", "EngineStatistics", "EngineStopped", "GenerationHandle", "QueueFull"]


class Engine:
    """Up to `slots` texts at once, `queue_size` more waiting; `prefill_tokens` of their prompts are read per step.

    `length`: most tokens of a text, prompt and new ones; as many as the model was trained for if not given, and more
    only where its positions allow. `source_length`: the same for sources. `prefixes`: size of the prefix cache, so that
    prompts which share a beginning read it once, as far as whole pieces of 32 tokens go. `speculative`: prompt look-up,
    which changes the time only; if not given, for a greedy text that is alone, where it changes no bit. As a context
    manager it runs in a thread of its own, and leaving it cancels what is open; without, `step()` advances it, or
    waiting for a handle does.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        slots: int = 16,
        queue_size: int = 256,
        prefill_tokens: int = 256,
        length: int | None = None,
        source_length: int | None = None,
        prefixes: int = 0,
        speculative: bool | None = None,
    ) -> None:
        self.model, self.declaration = model, declared(model)
        if slots < 1 or prefill_tokens < 1 or queue_size < 0 or prefixes < 0:
            raise WeftError(
                f"an engine of slots={slots}, prefill_tokens={prefill_tokens}, queue_size={queue_size} and "
                f"prefixes={prefixes}: slots and prefill_tokens must be at least 1, the others at least 0"
            )
        if prefixes and self.declaration.seq2seq:
            raise WeftError("texts of an encoder-decoder share nothing, each has its own source: use prefixes=0")
        self.queue_size = queue_size
        declared_source = self.declaration.source_length or self.declaration.length
        self.length = self._longest(length, self.declaration.length)
        self.source_length = self._longest(source_length, declared_source)
        source = self.source_length if self.declaration.seq2seq else 0
        memory = Slots(model, slots, self.length + (self.declaration.prefix or 0), source)
        self._batch = RunningBatch(model, memory, prefill_tokens, prefixes, speculative)
        self._parts = list(model.modules())
        self._queue: deque[GenerationHandle] = deque()
        self._taken: list[GenerationHandle] = []  # out of the queue, as of the last step or since
        self._numbers = count()
        self._open = 0
        self._stopped: str | None = None
        self._thread: threading.Thread | None = None
        self._changed = threading.Condition()  # guards the queue, the number of open requests and the end
        self._stepping = threading.Lock()  # guards the batch

    def _longest(self, length: int | None, known: int | None) -> int:
        longest = known if length is None else length
        if longest is None or longest < 1:
            raise WeftError(f"texts of {longest} tokens: give the engine a `length` of at least 1")
        if known is not None and longest > known and self.declaration.positions == "absolute":
            raise WeftError(f"texts of {longest} tokens, but the model knows {known} positions: use at most that")
        return longest

    @property
    def exact(self) -> bool:
        """Whether log-probabilities are the same, bit for bit, alone and in any company; else tokens alone mostly are.

        So it is where the model has a native step: float32 or weights in blocks, a C compiler, nobody watching.
        """
        with eval_mode(self.model):
            return decodes_alike(self.model)

    def submit(self, request: EngineRequest) -> GenerationHandle:
        """Queue a request, from any thread; refused if it can never be done, or if too many wait."""
        request.expect_fit(self.declaration, self.length, self.source_length)
        slots = self._batch.slots.count
        with self._changed:
            if self._stopped is not None:
                raise EngineStopped(f"{self._stopped}: make a new engine")
            if self._open >= slots + self.queue_size:
                self._batch.statistics.refused += 1
                raise QueueFull(
                    f"{self._open} requests are open, but this engine generates {slots} at once and lets "
                    f"{self.queue_size} wait: try again later, or make an engine of larger `queue_size`"
                )
            handle = GenerationHandle(request, next(self._numbers), self)
            self._queue.append(handle)
            self._open += 1
            self._changed.notify_all()
        return handle

    def step(self) -> bool:
        """Read some of the prompts, generate a token of every text or more; False once nothing is left to do."""
        if self.running:
            raise WeftError("this engine runs in its own thread: leave step() out, or use the engine without `with`")
        return self.advance()

    def run(self) -> None:
        """Steps until nothing is left to do."""
        while self.step():
            pass

    @property
    def running(self) -> bool:
        """Whether it steps by itself, in a thread of its own."""
        return self._thread is not None and self._stopped is None

    @property
    def statistics(self) -> EngineStatistics:
        """Counts so far, and what the engine holds now."""
        return replace(
            self._batch.statistics,
            waiting=len(self._queue),
            prefilling=len(self._batch.prompts),
            decoding=len(self._batch.sequences),
        )

    def advance(self) -> bool:
        """One step in the thread of the caller; whether anything is left to do. An error in it ends the engine."""
        with self._stepping:
            if self._stopped is not None:
                return False
            evaluating = eval_mode(self.model) if any(part.training for part in self._parts) else nullcontext()
            try:
                with evaluating, torch.inference_mode():
                    self._batch.step(self._take)
            except BaseException as error:
                self._halt(f"this engine failed ({type(error).__name__}: {error})")
                self._batch.statistics.failed += self._abandon("failed", error)
                raise
            with self._changed:
                self._taken = self._batch.handles
                self._open = len(self._queue) + len(self._taken)
                return self._open > 0

    def withdraw(self, handle: GenerationHandle) -> None:
        """A cancelled request waits no longer; if it is being decoded, it leaves at the next step."""
        with self._changed:
            self._batch.statistics.cancelled += 1
            if handle in self._queue:
                self._queue.remove(handle)
                self._open -= 1

    def __enter__(self) -> Self:
        with self._changed:
            if self._stopped is not None or self._thread is not None:
                raise EngineStopped(f"{self._stopped or 'this engine runs already'}: make a new engine")
            self._thread = threading.Thread(target=self._run_thread, name="weft engine", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop after the current step, cancel what is open, free the memory."""
        self._halt("this engine is closed")
        if self._thread is not None:
            self._thread.join()
        with self._stepping:
            self._batch.statistics.cancelled += self._abandon("cancelled", Cancelled("the engine was closed"))

    def _run_thread(self) -> None:
        """A step whenever there is something to do."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._open > 0 or self._stopped is not None)
                if self._stopped is not None:
                    return
            try:
                self.advance()
            except BaseException:  # every handle and the next submit() raise it
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
        """End all that is open, and free their memory; how many there were."""
        with self._changed:
            handles = [*self._taken, *self._queue]
            self._queue.clear()
            self._taken.clear()
            self._open = 0
        self._batch.forget()
        return sum(handle.close(status, error) for handle in handles)
