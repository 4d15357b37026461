"""Streams: server-sent events that end when the client leaves, and answers that are given up when nobody waits."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Coroutine
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from weft.serving.served.tickets import ModelFailed, TextInterrupted
from weft.serving.state import record_of, state_of
from weft.serving.web.errors import ApiError, ClientGone, to_json
from weft.serving.web.request_log import report_failure

Found = TypeVar("Found")
DONE = b"data: [DONE]\n\n"


def event(value: Any) -> bytes:
    """A value as one server-sent event: `data: JSON` and an empty line."""
    return b"data: " + to_json(value) + b"\n\n"


class EventStream(Response):
    """Events as they come; a failure after the first is an event too. The generator is closed in any case."""

    media_type = "text/event-stream"

    def __init__(self, request: Request, first: bytes, events: AsyncGenerator[bytes]) -> None:
        super().__init__(headers={"cache-control": "no-cache", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self.request, self.first, self.events = request, first, events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await while_connected(receive, self._send_all(send))
        except ClientGone:
            record_of(self.request).more["disconnected"] = True
            state_of(self.request).metrics.disconnects += 1
        finally:
            await self.events.aclose()

    async def _send_all(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": self.first, "more_body": True})
        left = state_of(self.request).settings.timeouts.answer - record_of(self.request).seconds
        try:
            async with asyncio.timeout(left):
                async for part in self.events:
                    await send({"type": "http.response.body", "body": part, "more_body": True})
            end = DONE
        except Exception as error:
            found = as_api_error(error, self.request)
            record_of(self.request).more["error"] = found.code
            end = event(found.tree)
        await send({"type": "http.response.body", "body": end, "more_body": False})


async def begin_stream(request: Request, events: AsyncGenerator[bytes]) -> EventStream:
    """A stream whose first event is there: what fails before it is an answer with a status of its own."""
    try:
        first = await answer_while_connected(request, anext(events))
    except BaseException:
        await events.aclose()
        raise
    return EventStream(request, first, events)


async def answer_while_connected(request: Request, work: Coroutine[Any, Any, Found]) -> Found:
    """What some work gives, unless the client leaves or the time for an answer, counted from its arrival, is over."""
    seconds = state_of(request).settings.timeouts.answer
    try:
        async with asyncio.timeout(seconds - record_of(request).seconds):
            return await while_connected(request.receive, work)
    except TimeoutError:
        raise out_of_time(seconds) from None


def out_of_time(seconds: float) -> ApiError:
    """The error of an answer that takes too long; clients should not ask for the same again."""
    message = f"the answer took more than {seconds:g} seconds: ask for fewer tokens"
    return ApiError(408, message, code="timeout", headers={"x-should-retry": "false"})


async def while_connected(receive: Receive, work: Coroutine[Any, Any, Found]) -> Found:
    """The result of `work`, which is cancelled once the client has left; then ClientGone."""
    task = asyncio.ensure_future(work)
    watcher = asyncio.ensure_future(_until_disconnect(receive))
    try:
        await asyncio.wait((task, watcher), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientGone
    finally:
        for one in (task, watcher):
            one.cancel()
            with contextlib.suppress(BaseException):
                await one


async def _until_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def as_api_error(error: Exception, request: Request) -> ApiError:
    """What a client is told of a failure; what only the operator should know goes to the log."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, TimeoutError):
        return out_of_time(state_of(request).settings.timeouts.answer)
    if isinstance(error, TextInterrupted):
        return ApiError(503, str(error), code="interrupted", retry_after=5)
    report_failure(record_of(request), error)
    if isinstance(error, ModelFailed):
        return ApiError(500, "the model failed at this request; the server's log knows why", code="model_failed")
    return ApiError(500, "the server failed at this request; its log knows why", code="internal")
