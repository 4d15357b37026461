"""Connections: HTTP/1.1 by uvicorn and h11, bounded in number, in the time of their headers, in unread answers."""

from __future__ import annotations

import asyncio
import time
from http import HTTPStatus
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

from weft.serving.settings import ServerSettings
from weft.serving.web.errors import error_tree, to_json


class BoundedConnection(H11Protocol):
    """A connection with a clock: headers that do not come in time end it, wherever they stop."""

    most = 0
    header_seconds = 0.0
    header_timer: asyncio.TimerHandle | None = None
    refused = False
    unsent = 0  # bytes that the client had not taken when last looked at
    unsent_since = 0.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        # So that a broken stream can be cut: closing would wait for a client that does not read.
        self.app_state = {**self.app_state, "abort": transport.abort}
        if len(self.connections) > self.most:
            self.refuse(429, "too many connections: try again later", retry_after=1)
        else:
            self._start_clock()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_clock()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.refused:
            return
        if not self.answering and self.header_timer is None:
            self._start_clock()
        super().data_received(data)
        if self.answering:
            self._stop_clock()

    @property
    def answering(self) -> bool:
        """Whether a request has arrived whose answer is not complete."""
        return self.cycle is not None and not self.cycle.response_complete

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.answering:  # the next request was waiting already
            self._stop_clock()

    def _start_clock(self) -> None:
        self.header_timer = self.loop.call_later(self.header_seconds, self._expire)

    def _stop_clock(self) -> None:
        if self.header_timer is not None:
            self.header_timer.cancel()
            self.header_timer = None

    def _expire(self) -> None:
        self.header_timer = None
        if not self.answering:
            self.refuse(408, f"the headers did not arrive within {self.header_seconds:g} seconds")

    def send_400_response(self, msg: str) -> None:
        """What is no HTTP, in the form of this API's errors."""
        if self.answering and self.cycle.response_started:  # nothing else fits into the connection
            self.transport.abort()
            return
        self.refuse(400, "this is not a valid HTTP request")

    def refuse(self, status: int, message: str, retry_after: int | None = None) -> None:
        """An error and the end of the connection."""
        self.refused = True
        self._stop_clock()
        self._unset_keepalive_if_required()
        if self.transport.is_closing():
            return
        body = to_json(error_tree(status, message))
        lines = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}", "content-type: application/json"]
        lines += [f"content-length: {len(body)}", "connection: close"]
        lines += [] if retry_after is None else [f"retry-after: {retry_after}"]
        self.transport.write("\r\n".join([*lines, "", ""]).encode() + body)
        self.transport.close()

    def cut_if_stalled(self, seconds: float) -> None:
        """End it at once if the client has taken nothing of what waits for it for so long."""
        waiting, now = self.transport.get_write_buffer_size(), time.monotonic()
        if waiting == 0 or waiting != self.unsent:
            self.unsent, self.unsent_since = waiting, now
        elif now - self.unsent_since > seconds:
            self.transport.abort()


def connection_class(settings: ServerSettings) -> type[BoundedConnection]:
    """The protocol with a server's bounds, as uvicorn takes it: a class."""
    bounds: dict[str, Any] = {"most": settings.limits.connections, "header_seconds": settings.timeouts.headers}
    return type("Connection", (BoundedConnection,), bounds)
