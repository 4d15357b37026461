"""Requests and handles: what is asked of the engine, and where its answer is read while it is being written."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, Protocol, Self

import torch
from torch import Tensor

from weft.foundation.errors import LengthError, WeftError
from weft.inference.decoding.detokenizer import Detokenizer, TextStream
from weft.inference.decoding.generate import GeneratedText, GeneratedToken
from weft.inference.decoding.sampling import GREEDY, Sampling, TokenSampler
from weft.models.output import Declaration, Memory

Status = Literal["waiting", "reading", "writing", "done", "cancelled", "failed"]
OPEN: tuple[Status, ...] = ("waiting", "reading", "writing")


class QueueFull(WeftError):
    """More requests than the engine may hold; the same request may be accepted later."""


class Cancelled(WeftError):
    """The request was given up before its text was finished."""


class EngineStopped(WeftError):
    """The engine was closed, or broke; it takes no more requests."""


@dataclass(frozen=True, eq=False)
class EngineRequest:
    """One text to be written; what it becomes is what `generate` makes of it alone.

    `source`: tokens, or one row of memory, for encoder-decoders; `image` [channels, height, width] for image-text
    decoders. `shared`: so many first tokens of the prompt begin other prompts too, for an engine that keeps prefixes.
    """

    prompt: Sequence[int]
    sampling: Sampling = GREEDY
    max_tokens: int = 64
    stop: Sequence[int] = ()
    seed: int = 0
    text: Detokenizer | None = None
    source: Sequence[int] | Memory | None = None
    image: Tensor | None = None
    shared: int = 0

    def __post_init__(self) -> None:
        # What is asked for must not change while it waits.
        for name in ("prompt", "stop", "source"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, Memory):
                object.__setattr__(self, name, tuple(int(token) for token in value))

    @property
    def source_length(self) -> int:
        """In tokens."""
        if self.source is None:
            return 0
        return self.source.hidden.shape[1] if isinstance(self.source, Memory) else len(self.source)

    def expect_fit(self, declaration: Declaration, length: int, source_length: int) -> None:
        """Refuse what this model or this engine cannot do, before anything is computed."""
        if not self.prompt or self.max_tokens < 1:
            raise WeftError("a prompt of at least one token and max_tokens of at least 1 are needed to write")
        least, most, vocabulary = min(self.prompt), max(self.prompt), declaration.vocabulary or 0
        if least < 0 or most >= vocabulary:
            worst = least if least < 0 else most
            raise WeftError(f"token {worst}, but the vocabulary has 0 to {vocabulary - 1}: check the tokenizer")
        # The last token written is never read.
        if len(self.prompt) + self.max_tokens - 1 > length:
            raise LengthError(
                f"a prompt of {len(self.prompt)} tokens and {self.max_tokens} new ones, but this engine holds {length} "
                "a text: give fewer, or make an engine of larger `length`"
            )
        if not 0 <= self.shared <= len(self.prompt):
            raise WeftError(f"{self.shared} shared tokens of a prompt of {len(self.prompt)}: share 0 to all of them")
        self._expect_conditions(declaration, source_length)

    def _expect_conditions(self, declaration: Declaration, source_length: int) -> None:
        family = f"a model of family {declaration.family!r}"
        if declaration.seq2seq and self.source is None:
            raise WeftError(f"{family} writes about a source: give `source`")
        if not declaration.seq2seq and self.source is not None:
            raise WeftError(f"{family} reads no source: leave `source` out")
        if self.image is not None and declaration.prefix is None:
            raise WeftError(f"{family} sees no images: leave `image` out")
        if self.image is not None and self.image.dim() != 3:
            raise WeftError(f"an image is [channels, height, width], not {tuple(self.image.shape)}: give one a request")
        if isinstance(self.source, Memory) and self.source.hidden.shape[0] != 1:
            raise WeftError(f"a memory of {self.source.hidden.shape[0]} rows: give one row a request")
        if declaration.seq2seq and not 1 <= self.source_length <= source_length:
            raise LengthError(
                f"a source of {self.source_length} tokens, but this engine takes 1 to {source_length}: "
                "give fewer, or make an engine of larger `source_length`"
            )


class EngineDriver(Protocol):
    """Who moves a handle's text on: an engine."""

    @property
    def running(self) -> bool:
        """Whether it moves by itself, in a thread of its own."""
        ...

    def advance(self) -> bool:
        """One step, in the thread of the caller."""
        ...

    def withdraw(self, handle: GenerationHandle) -> None:
        """A cancelled handle waits no longer."""
        ...


class GenerationHandle:
    """One request on its way; safe to use from any thread, and from several.

    Iterating gives each `GeneratedToken` as soon as it is there, from the first, as often as one likes. Without an
    engine that runs in the background, waiting moves the engine on. As a context manager
    it cancels what is not finished.
    """

    def __init__(self, request: EngineRequest, number: int, engine: EngineDriver) -> None:
        self.request, self.number = request, number
        self.status: Status = "waiting"
        self.error: BaseException | None = None
        self._engine = engine
        self._steps: list[GeneratedToken] = []
        self._looks: list[Tensor] = []
        self._lock = threading.Lock()
        self._changed, self._over = threading.Condition(self._lock), threading.Condition(self._lock)

    @property
    def open(self) -> bool:
        """Whether more may come."""
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

    def pieces(self) -> Iterator[str]:
        """The text, piece by piece, if the request says how to read it."""
        if self.request.text is None:
            raise WeftError("this request gives tokens only: give it `text` to read them as text")
        return (step.text for step in self if step.text)

    def result(self, timeout: float | None = None) -> GeneratedText:
        """All of it, once it is finished; raises what made it fail, or TimeoutError after so many seconds."""
        if not self._wait(self._over, lambda: not self.open, timeout):
            raise TimeoutError(f"request {self.number} is not finished after {timeout} seconds")
        self._raise()
        steps = self._steps
        finish_reason = steps[-1].finish_reason
        assert finish_reason is not None
        kept = steps[:-1] if steps[-1].token in self.request.stop else steps
        return GeneratedText(
            [step.token for step in kept],
            [step.log_probability for step in kept],
            finish_reason,
            sum(step.log_probability for step in steps),
            torch.stack(self._looks)[: len(kept)] if self._looks else None,
            None if self.request.text is None else "".join(step.text for step in steps),
        )

    def cancel(self) -> bool:
        """Give it up, wherever it is; False if it was over already. What was written so far can still be iterated."""
        cancelled = self.close("cancelled", Cancelled(f"request {self.number} was cancelled"))
        if cancelled:
            self._engine.withdraw(self)
        return cancelled

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.cancel()

    def give(self, step: GeneratedToken, look: Tensor | None = None) -> bool:
        """The engine's side: the next step; False if nobody wants more."""
        with self._lock:
            if not self.open:
                return False
            self._steps.append(step)
            if look is not None:
                self._looks.append(look)
            self.status = "writing" if step.finish_reason is None else "done"
            self._changed.notify_all()
            if step.finish_reason is not None:
                self._over.notify_all()
        return step.finish_reason is None

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
                self.status = "reading"

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


class RunningSequence:
    """A handle whose text is being written: how its tokens are chosen, read as text, and counted."""

    def __init__(self, handle: GenerationHandle, vocabulary: int, device: torch.device) -> None:
        self.handle, request = handle, handle.request
        self.sampler = TokenSampler(request.sampling, request.seed, request.prompt, vocabulary, device)
        self.texts: TextStream | None = None
        self.stop = frozenset(request.stop)
        self.tokens: list[int] = []
        self.real = request.source.token_positions.real if isinstance(request.source, Memory) else None

    def take(self, token: int, chance: float, look: Tensor | None) -> bool:
        """One more token is given; whether the text goes on."""
        self.tokens.append(token)
        stop = token in self.stop
        last = len(self.tokens) == self.handle.request.max_tokens
        text = ""
        if self.texts is None and self.handle.request.text is not None:
            self.texts = self.handle.request.text.stream(self.handle.request.prompt)
        if self.texts is not None:
            text = "" if stop else self.texts.feed(token)
            if stop or last:
                text += self.texts.finish()
            stop = stop or self.texts.stopped
        if look is not None:
            look = look[: self.handle.request.source_length].clone()
            look = look if self.real is None else look[self.real[0]]
        return self.handle.give(
            GeneratedToken(0, token, chance, "stop" if stop else "length" if last else None, text), look
        )
