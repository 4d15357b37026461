"""The gate, which every request passes: its id, who it comes from, its body read within bounds, and the log's line.

Plain ASGI: the app behind it can still hear that a client has left, which ready-made middleware would hide.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import MutableMapping
from typing import Any

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from weft.serving.state import CLIENT, RECORD, STATE, ServerState
from weft.serving.web.errors import ApiError, ClientGone, error_answer, from_http
from weft.serving.web.keys import ANYONE, Client, expect_own_host
from weft.serving.web.request_log import RequestRecord, report_failure, request_id, write_record

OPEN_PATHS = ("/health", "/ready", "/docs")  # without a key
API = "/v1/"
TASKS = "/v1/tasks/"
GONE = 499  # what the log says of a client that left
DISCARD_SECONDS = 1.0  # in which the rest of a refused body is read, so that the client reads the refusal
RETRY_WHILE_STOPPING = 5


class Gate:
    """ASGI middleware around the whole app."""

    def __init__(self, app: ASGIApp, state: ServerState) -> None:
        self.app, self.state = app, state

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        visit = Visit(self.app, self.state, scope, receive, send)
        try:
            await visit.answer()
        finally:
            record = visit.record
            record.route = getattr(scope.get("route"), "path", "other")
            self.state.metrics.count_request(record.route, record.status, record.seconds)
            write_record(record)


class Visit:
    """One request on its way through the gate."""

    def __init__(self, app: ASGIApp, state: ServerState, scope: Scope, receive: Receive, send: Send) -> None:
        self.app, self.state, self.scope, self.receive, self.to_client = app, state, scope, receive, send
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        address = (scope.get("client") or ("",))[0]
        path = scope["path"]
        self.record = RequestRecord(request_id(self.headers.get(b"x-request-id", b"")), scope["method"], path, address)
        self.started = self.finished = self.counted = False
        self.held = 0
        self.unread = scope["method"] not in ("GET", "HEAD")
        scope.update({STATE: state, RECORD: self.record, CLIENT: Client()})

    async def answer(self) -> None:
        """Pass it on, or refuse it; whatever goes wrong becomes an error of the API."""
        try:
            await self._admit()
            receive = self.receive if not self.unread else self._replay(await self._read_body())
            self.counted = self.scope["path"].startswith(API)
            self.state.answering += self.counted
            await self.app(self.scope, receive, self._send)
        except ClientGone:
            self.record.status = GONE
            await self._finish_for_nobody()
        except HTTPException as error:
            await self._refuse(from_http(error))
        except Exception as error:
            report_failure(self.record, error)
            await self._refuse(ApiError(500, "the server failed at this request; its log knows why", code="internal"))
        finally:
            self.state.answering -= self.counted
            self.state.body_bytes -= self.held

    async def _admit(self) -> None:
        path, keys, most = self.scope["path"], self.state.keys, self.state.settings.limits.header_bytes
        if sum(len(name) + len(value) + 4 for name, value in self.scope["headers"]) + len(path) > most:
            raise ApiError(431, f"the headers are larger than {most:,} bytes: send less", code="headers_too_large")
        if path not in OPEN_PATHS:
            if not keys:
                expect_own_host(self.headers)
            client = keys.identify(self.headers)
            self.scope[CLIENT], self.record.client = client, client.name or ANYONE
        if self.state.stopping and path.startswith(API):
            raise ApiError(503, "this server is stopping", code="stopping", retry_after=RETRY_WHILE_STOPPING)

    async def _read_body(self) -> bytes:
        """The whole body, within its bounds of size and time."""
        limits = self.state.settings.limits
        most = limits.task_body if self.scope["path"].startswith(TASKS) else limits.body
        declared = self.headers.get(b"content-length", b"0")
        if not declared.isdigit() or len(declared) > 18 or int(declared) > most:
            raise _too_large(most)
        body = bytearray()
        try:
            async with asyncio.timeout(self.state.settings.timeouts.body):
                async for part in self._parts():
                    if len(body) + len(part) > most:
                        raise _too_large(most)
                    if self.state.body_bytes + len(part) > limits.bodies:
                        raise ApiError(429, "too many bodies are being read: try again", retry_after=1, code="busy")
                    self.state.body_bytes += len(part)
                    self.held += len(part)
                    body += part
        except TimeoutError:
            seconds = self.state.settings.timeouts.body
            raise ApiError(408, f"the body did not arrive within {seconds:g} seconds", code="body_timeout") from None
        self.unread = False
        if body and not _is_json(self.headers.get(b"content-type", b"")):
            raise ApiError(415, "a body is JSON here: send the header content-type: application/json")
        return bytes(body)

    async def _parts(self) -> Any:
        while True:
            message = await self.receive()
            if message["type"] == "http.disconnect":
                raise ClientGone
            yield message.get("body", b"")
            if not message.get("more_body"):
                return

    def _replay(self, body: bytes) -> Receive:
        """What the app receives: the body, then what comes from the client."""
        given = False

        async def receive() -> Message:
            nonlocal given
            if given:
                return await self.receive()
            given = True
            return {"type": "http.request", "body": body, "more_body": False}

        return receive

    async def _send(self, message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self.started, self.record.status = True, message["status"]
            more = [(b"x-request-id", self.record.id.encode()), (b"x-content-type-options", b"nosniff")]
            message["headers"] = [*message.get("headers", ()), *more]
        await self.to_client(message)
        self.finished = message["type"] == "http.response.body" and not message.get("more_body")

    async def _refuse(self, error: ApiError) -> None:
        if self.started:  # nothing can follow; an answer that broke must not look like a whole one
            if not self.finished:
                self._abort()
            return
        self.record.more["error"] = error.code or error.tree["error"]["type"]
        answer = error_answer(error)
        if self.unread:
            await self._discard()
            answer.headers["connection"] = "close"
        await answer(self.scope, self.receive, self._send)

    async def _discard(self) -> None:
        """Read on for a moment: a connection that is closed on unread data is reset, and the answer is lost."""
        left = 4 * self.state.settings.limits.task_body
        with contextlib.suppress(TimeoutError, ClientGone):
            async with asyncio.timeout(DISCARD_SECONDS):
                async for part in self._parts():
                    left -= len(part)
                    if left < 0:
                        return

    async def _finish_for_nobody(self) -> None:
        """The framework wants an answer to every request, also where nobody reads it."""
        if not self.started:
            await self.to_client({"type": "http.response.start", "status": GONE, "headers": []})
            await self.to_client({"type": "http.response.body", "body": b""})

    def _abort(self) -> None:
        abort = self.scope.get("state", {}).get("abort")
        if abort is not None:
            abort()


def _too_large(most: int) -> ApiError:
    return ApiError(413, f"the body is larger than {most:,} bytes: send less", code="body_too_large")


def _is_json(content_type: bytes) -> bool:
    kind = content_type.split(b";")[0].strip().lower()
    return kind == b"application/json" or (kind.startswith(b"application/") and kind.endswith(b"+json"))
