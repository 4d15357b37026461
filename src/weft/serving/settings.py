"""What a server is started with: address, keys, limits, time-outs, and how its engines are made."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass, field

from weft.foundation.errors import WeftError

MEGABYTE = 1 << 20
LOOPBACK_NAMES = ("localhost", "localhost.localdomain")


@dataclass(frozen=True)
class Limits:
    """Bounds on what one request, one connection and all of them together may take.

    `body` bytes of a request, `task_body` of one that carries images, sounds or series, `bodies` of all that are being
    read; `texts` is prompts x n of a request, `tokens` the most new ones of a text (the model's length if not given),
    `top` the likeliest tokens, `inputs` those of a task; `connections` open at once.
    """

    body: int = 4 * MEGABYTE
    task_body: int = 16 * MEGABYTE
    bodies: int = 256 * MEGABYTE
    texts: int = 128
    tokens: int | None = None
    top: int = 20
    inputs: int = 256
    connections: int = 1024
    header_bytes: int = 16 * 1024

    def __post_init__(self) -> None:
        for name in ("body", "task_body", "bodies", "texts", "inputs", "connections"):
            if getattr(self, name) < 1:
                raise WeftError(f"a limit of {getattr(self, name)} {name} lets nothing through: use at least 1")
        if self.tokens is not None and self.tokens < 1:
            raise WeftError(f"a limit of {self.tokens} tokens generates nothing: use at least 1, or leave it out")


@dataclass(frozen=True)
class Timeouts:
    """Seconds: for the headers and the body of a request to arrive, for a client to take what it is sent, between
    requests of a connection, for a whole answer, and for running answers to finish once the server is told to stop."""

    headers: float = 10.0
    body: float = 30.0
    stalled: float = 30.0
    idle: float = 30.0
    answer: float = 600.0
    stop: float = 30.0

    def __post_init__(self) -> None:
        for name in ("headers", "body", "stalled", "idle", "answer"):
            if getattr(self, name) <= 0:
                raise WeftError(f"a time-out of {getattr(self, name):g} seconds ({name}) ends everything: use more")
        if self.stop < 0:
            raise WeftError(f"{self.stop:g} seconds to stop: use 0 or more")


@dataclass(frozen=True)
class EngineSettings:
    """How engines are made: texts generated at once, requests that wait, prefixes kept, tokens of a text, template."""

    slots: int = 16
    queue: int = 128
    prefixes: int = 4
    length: int | None = None
    prefill_tokens: int = 256
    chat_template: str | None = None

    def __post_init__(self) -> None:
        if self.slots < 1 or self.queue < 0 or self.prefixes < 0:
            raise WeftError(
                f"slots={self.slots}, queue={self.queue}, prefixes={self.prefixes}: slots must be at least 1, the "
                "others at least 0"
            )


@dataclass(frozen=True)
class ServerSettings:
    """All of it; `log_prompts` writes what users send into the access log."""

    host: str = "127.0.0.1"
    port: int = 8000
    keys: tuple[str, ...] = ()
    limits: Limits = field(default_factory=Limits)
    timeouts: Timeouts = field(default_factory=Timeouts)
    engine: EngineSettings = field(default_factory=EngineSettings)
    access_log: bool = True
    log_prompts: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise WeftError(f"there is no port {self.port}: choose 1 to 65535, or 0 for any that is free")
        if not self.keys and not is_loopback(self.host):
            raise WeftError(
                f"a server on {self.host} answers other machines, so it needs a key: give --api-key-file FILE or set "
                "WEFT_API_KEYS, or use --host 127.0.0.1"
            )


def is_loopback(host: str) -> bool:
    """Whether an address or name reaches this machine only."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() in LOOPBACK_NAMES


def read_keys(given: Sequence[str], file_text: str | None, environment: str | None) -> tuple[str, ...]:
    """The keys of the command line, of a file (one per line, # begins a comment), of the environment (by commas)."""
    lines = [] if file_text is None else [line.split("#")[0].strip() for line in file_text.splitlines()]
    found = [*given, *lines, *([] if environment is None else environment.replace("\n", ",").split(","))]
    keys = tuple(dict.fromkeys(key.strip() for key in found if key.strip()))
    for key in keys:
        if len(key) < 8 or not key.isascii() or not key.isprintable() or " " in key:
            raise WeftError(
                f"an API key of {len(key)} characters: use 8 or more printable ASCII characters without spaces"
            )
    if (file_text is not None or environment is not None or given) and not keys:
        raise WeftError("there is no API key in what was given: write one per line, or leave the option out")
    return keys
