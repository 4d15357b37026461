"""Tickets: what the event loop holds of a text that an engine generates in another thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from weft.inference.decoding.generated import GeneratedToken
from weft.inference.engine.handles import GenerationHandle


class TextInterrupted(Exception):
    """The text ended before it was finished; the message is for the client."""


class ModelFailed(Exception):
    """The model failed at this text; its cause is for the server's log."""


class Ticket:
    """One text: `next()` waits for tokens. Everything here happens in the event loop but `handle`'s own locking."""

    def __init__(self, handle: GenerationHandle, on_close: Callable[[Ticket], None]) -> None:
        self.handle, self.on_close = handle, on_close
        self.taken = 0  # tokens that the engine's thread has handed over
        self.waiting: list[GeneratedToken] = []
        self.over = False
        self.error: BaseException | None = None
        self.came = asyncio.Event()

    def give(self, tokens: list[GeneratedToken], over: bool, error: BaseException | None) -> None:
        """What came since the last step."""
        if self.over:
            return
        self.waiting += tokens
        self.over, self.error = over, error
        self.came.set()

    def interrupt(self, reason: str) -> None:
        """End it without an answer."""
        if not self.over:
            self.handle.cancel()
            self.over, self.error = True, TextInterrupted(reason)
            self.came.set()

    async def next(self) -> list[GeneratedToken]:
        """The tokens since the last call, at least one; none once the text is finished."""
        while not self.waiting:
            if self.error is not None:
                self.on_close(self)
                if isinstance(self.error, TextInterrupted):
                    raise self.error
                raise ModelFailed from self.error
            if self.over:
                self.on_close(self)
                return []
            self.came.clear()
            await self.came.wait()
        found, self.waiting = self.waiting, []
        return found

    def close(self) -> None:
        """Nobody waits any more: the engine's slot becomes free at its next step."""
        if not self.over:
            self.over = True
            self.handle.cancel()
        self.on_close(self)

    @property
    def prompt_scores(self) -> Any:
        """Of the prompt's tokens, if the request asked for them: (token, log-probability or None, likeliest)."""
        return self.handle.prompt_scores
