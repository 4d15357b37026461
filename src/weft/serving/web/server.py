"""The server: uvicorn with bounded connections, and a stop that first finishes what runs.

At the first SIGTERM or SIGINT new requests get 503, also `/ready`; the sockets stay open until all answers are
finished or the time for it is over. The second signal ends everything at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import resource
import socket
import time
from collections.abc import Callable
from types import FrameType

import uvicorn
from starlette.types import ASGIApp

from weft.foundation.errors import WeftError
from weft.serving.settings import ServerSettings
from weft.serving.state import ServerState
from weft.serving.web.connections import BoundedConnection, connection_class

TICKS_PER_SECOND = 10  # of uvicorn's own loop


class Server(uvicorn.Server):
    """uvicorn's server, with another way to stop and an eye on clients that do not read."""

    def __init__(self, app: ASGIApp, state: ServerState, on_start: Callable[[], None] = lambda: None) -> None:
        settings = state.settings
        super().__init__(
            uvicorn.Config(
                app,
                http=connection_class(settings),
                loop="asyncio",
                ws="none",
                lifespan="on",
                log_config=None,
                access_log=False,
                proxy_headers=False,
                server_header=False,
                timeout_keep_alive=max(1, round(settings.timeouts.idle)),
                timeout_graceful_shutdown=1,
                h11_max_incomplete_event_size=settings.limits.header_bytes,
            )
        )
        self.state = state
        self.told_to_stop: float | None = None
        self.on_start = on_start

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, then say so."""
        await super().startup(sockets)
        if self.started:
            self.on_start()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """A signal: the first one stops softly."""
        if self.told_to_stop is None:
            self.told_to_stop = time.monotonic()
            self.state.stopping = True
        else:
            self.should_exit = self.force_exit = True

    async def on_tick(self, counter: int) -> bool:
        """Ten times a second."""
        if counter % TICKS_PER_SECOND == 0:
            for connection in list(self.server_state.connections):
                if isinstance(connection, BoundedConnection):
                    connection.cut_if_stalled(self.state.settings.timeouts.stalled)
        return await super().on_tick(counter) or await self._is_over()

    async def _is_over(self) -> bool:
        """Whether it was told to stop and nothing is left to finish, or no time for it."""
        if self.told_to_stop is None:
            return False
        if self.state.answering and time.monotonic() - self.told_to_stop < self.state.settings.timeouts.stop:
            return False
        if self.state.answering:
            self.state.runs.interrupt("this server is stopping")
            await asyncio.sleep(0.2)  # for streams to say so
        return True


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens; a port of 0 is any that is free."""
    found: socket.socket | None = None
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        found = socket.socket(family, kind, protocol)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(address)
    except OSError as error:
        if found is not None:
            found.close()
        reason = error.strerror or str(error)
        raise WeftError(f"cannot listen on {host}, port {port} ({reason}): choose another --host or --port") from None
    found.set_inheritable(False)
    return found


def raise_file_limit() -> None:
    """As many open files as the system allows: each connection is one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        with contextlib.suppress(OSError, ValueError):  # macOS allows less than it says
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def address_of(settings: ServerSettings, listening: socket.socket) -> str:
    """The URL that clients are told."""
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    return f"http://{host}:{listening.getsockname()[1]}"
