"""What all requests share: settings, keys, metrics, the served runs, and whether the server is stopping."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from starlette.requests import Request

from weft.serving.settings import ServerSettings
from weft.serving.web.keys import Client, Keys
from weft.serving.web.metrics import Metrics
from weft.serving.web.request_log import RequestRecord

if TYPE_CHECKING:
    from weft.serving.served.served_runs import ServedRuns

STATE, RECORD, CLIENT = "weft.state", "weft.record", "weft.client"


@dataclass
class ServerState:
    """One per server; touched by the event loop only."""

    settings: ServerSettings
    runs: ServedRuns
    keys: Keys = field(default_factory=lambda: Keys(()))
    metrics: Metrics = field(default_factory=Metrics)
    stopping: bool = False
    answering: int = 0  # requests to a model whose answers are not complete
    body_bytes: int = 0  # of bodies that are held

    def __post_init__(self) -> None:
        self.keys = Keys(self.settings.keys)


def state_of(request: Request) -> ServerState:
    """That of the server that a request came to."""
    state: ServerState = request.scope[STATE]
    return state


def record_of(request: Request) -> RequestRecord:
    """What the log will say about a request."""
    record: RequestRecord = request.scope[RECORD]
    return record


def client_of(request: Request) -> Client:
    """Who sent a request."""
    client: Client = request.scope[CLIENT]
    return client
