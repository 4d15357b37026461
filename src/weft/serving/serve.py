"""`serve`: runs in, a server that answers until it is told to stop."""

from __future__ import annotations

import gc
import socket
from collections.abc import Callable, Sequence
from pathlib import Path

from weft.inference.fast.quantize import WeightKind
from weft.runs.run import load
from weft.serving.application import make_app
from weft.serving.served.served_runs import ServedRun, ServedRuns, name_runs, serve_run
from weft.serving.settings import ServerSettings
from weft.serving.state import ServerState
from weft.serving.web.request_log import start_logs
from weft.serving.web.server import Server, address_of, listen, raise_file_limit


def load_served(
    given: Sequence[str], settings: ServerSettings, device: str | None = None, quantize: WeightKind | None = None
) -> list[ServedRun]:
    """The runs that RUN or NAME=RUN mean."""
    found = []
    for name, folder in name_runs(given):
        run = load(folder if folder.startswith("sample:") else Path(folder), device, quantize)
        found.append(serve_run(name, run, settings.engine))
    return found


def serve(
    served: Sequence[ServedRun],
    settings: ServerSettings,
    announce: Callable[[str], None],
    listening: socket.socket | None = None,
) -> None:
    """Answer requests until a signal; `announce` is told the address once it is listened on."""
    raise_file_limit()
    start_logs(settings.access_log)
    place = listening or listen(settings.host, settings.port)
    state = ServerState(settings, ServedRuns(served))
    server = Server(make_app(state), state, lambda: announce(address_of(settings, place)))
    gc.collect()
    gc.freeze()  # what is loaded stays: collecting would look through it again and again
    server.run([place])
