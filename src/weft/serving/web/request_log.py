"""The access log: one line of JSON per request, and what a request is known by. Prompts only where asked for."""

from __future__ import annotations

import json
import logging
import re
import secrets
import sys
import time
from dataclasses import dataclass, field
from typing import Any

REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,64}")
LONGEST = 200  # characters of a path
access = logging.getLogger("weft.serving.access")
errors = logging.getLogger("weft.serving")


@dataclass
class RequestRecord:
    """What is told of a request; endpoints fill in what they know."""

    id: str
    method: str
    path: str
    address: str = ""
    client: str = ""
    route: str = "other"
    status: int = 0
    began: float = field(default_factory=time.monotonic)
    first_token: float | None = None
    more: dict[str, Any] = field(default_factory=dict)
    failure: BaseException | None = None  # that the log has already

    @property
    def seconds(self) -> float:
        """Since the request came."""
        return time.monotonic() - self.began

    def to_tree(self) -> dict[str, Any]:
        """As the log has it."""
        tree: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "id": self.id,
            "address": self.address,
            "client": self.client,
            "method": self.method,
            "path": self.path[:LONGEST],
            "status": self.status,
            "seconds": round(self.seconds, 4),
        }
        if self.first_token is not None:
            tree["first_token_seconds"] = round(self.first_token, 4)
        return {name: value for name, value in (tree | self.more).items() if value not in ("", None)}


def request_id(given: bytes) -> str:
    """The client's own id where it is harmless, else a new one."""
    text = given.decode("latin-1")
    return text if REQUEST_ID.fullmatch(text) else f"req_{secrets.token_hex(12)}"


def write_record(record: RequestRecord) -> None:
    """One line; control characters are escaped by JSON, so that nobody can forge lines."""
    if access.isEnabledFor(logging.INFO):
        access.info(json.dumps(record.to_tree()))


def report_failure(record: RequestRecord, error: BaseException) -> None:
    """A fault of the server, with its traceback: for the operator, never for the client. Once."""
    if record.failure is error:
        return
    record.failure = error
    errors.error("request %s failed: %s", record.id, type(error).__name__, exc_info=error)


def start_logs(access_log: bool) -> None:
    """Both logs go to stderr; the framework's own are silent."""
    for log, level, layout in (
        (access, logging.INFO if access_log else logging.CRITICAL, "%(message)s"),
        (errors, logging.INFO, "weft: %(message)s"),
    ):
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter(layout))
        log.handlers, log.propagate = [handler], False
        log.setLevel(level)
    for name in ("uvicorn", "uvicorn.error", "uvicorn.access", "uvicorn.asgi"):
        log = logging.getLogger(name)
        log.handlers, log.propagate = [logging.NullHandler()], False
        log.setLevel(logging.CRITICAL)
