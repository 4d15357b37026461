"""`python -m strict_server SETTINGS RUN...`: a server with bounds that no command line has options for."""

from __future__ import annotations

import json
import sys

import torch

from weft.serving.serve import load_served, serve
from weft.serving.settings import EngineSettings, Limits, ServerSettings, Timeouts

if __name__ == "__main__":
    torch.set_num_threads(1)
    given = json.loads(sys.argv[1])
    settings = ServerSettings(
        port=0,
        keys=tuple(given.get("keys", ())),
        limits=Limits(**given.get("limits", {})),
        timeouts=Timeouts(**given.get("timeouts", {})),
        engine=EngineSettings(**given.get("engine", {})),
        log_prompts=given.get("log_prompts", False),
    )
    serve(load_served(sys.argv[2:], settings), settings, lambda url: print(f"serving at {url}/v1", flush=True))
