"""/health, /ready, /metrics, and the models that are served."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import PlainTextResponse, Response

from weft.serving.endpoints.documented import answers_of
from weft.serving.endpoints.task_paths import paths_of
from weft.serving.served.served_runs import ServedRun, ServedText
from weft.serving.state import ServerState, state_of
from weft.serving.web.errors import JsonAnswer

router = APIRouter()
PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"


@router.head("/health", include_in_schema=False)
@router.get("/health", tags=["status"], responses=answers_of("status"))
async def health() -> Response:
    """Whether the server lives."""
    return JsonAnswer({"status": "ok"})


@router.head("/ready", include_in_schema=False)
@router.get("/ready", tags=["status"], responses=answers_of("status"))
async def ready(request: Request) -> Response:
    """Whether it takes requests: not while it stops, nor once a model has failed."""
    state = state_of(request)
    if state.stopping:
        return JsonAnswer({"status": "stopping"}, 503)
    return JsonAnswer({"status": "ok"}) if state.runs.ready else JsonAnswer({"status": "a model has failed"}, 503)


@router.get("/metrics", tags=["status"], response_class=PlainTextResponse)
async def metrics(request: Request) -> Response:
    """Counters, gauges and histograms for Prometheus."""
    state = state_of(request)
    return Response(state.metrics.text(gauges(state)), media_type=PROMETHEUS)


def gauges(state: ServerState) -> dict[str, dict[str, float]]:
    """What is going on now, per model."""
    found: dict[str, dict[str, float]] = {"weft_requests_open": {}, "weft_texts_waiting": {}, "weft_texts_running": {}}
    for name, one in state.runs.by_name.items():
        found["weft_requests_open"][name] = one.worker.open
        if isinstance(one, ServedText):
            now = one.worker.engine.statistics
            found["weft_texts_waiting"][name] = now.waiting
            found["weft_texts_running"][name] = now.prefilling + now.decoding
            for what in ("steps", "prompt_tokens", "reused_tokens", "generated_tokens", "cancelled", "failed"):
                found.setdefault(f"weft_engine_{what}", {})[name] = getattr(now, what)
    return found


@router.get("/v1/models", tags=["OpenAI"], responses=answers_of("models"))
async def list_models(request: Request) -> Response:
    """All served runs."""
    runs = state_of(request).runs.by_name.values()
    return JsonAnswer({"object": "list", "data": [describe(one) for one in runs]})


@router.get("/v1/models/{model:path}", tags=["OpenAI"], responses=answers_of("model"))
async def retrieve_model(model: str, request: Request) -> Response:
    """One served run."""
    return JsonAnswer(describe(state_of(request).runs.find(model)))


def describe(one: ServedRun) -> dict[str, Any]:
    """A run as clients list it: its task and the paths that answer for it besides what they expect."""
    tree: dict[str, Any] = {"id": one.name, "object": "model", "created": one.created, "owned_by": "weft"}
    tree["task"] = one.task
    more = {"max_model_len": one.length, "exact": one.exact} if isinstance(one, ServedText) else {}
    return {**tree, "paths": paths_of(one), **more}
