"""The app: all endpoints behind the gate, errors in one form, and the document that describes them."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp

from weft.foundation.errors import WeftError
from weft.serving.answers.events import as_api_error
from weft.serving.endpoints import chats, completions, document, embeddings, status, tasks
from weft.serving.served.tickets import ModelFailed, TextInterrupted
from weft.serving.state import ServerState, record_of
from weft.serving.web.errors import ApiError, ClientGone, error_answer, from_http, from_validation
from weft.serving.web.gate import GONE, Gate

DESCRIPTION = "Runs of Weft behind the paths of OpenAI's API, and one path for every other task."


def make_app(state: ServerState) -> ASGIApp:
    """The app of a server, gate included."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncGenerator[None]:
        state.runs.start()
        yield
        state.runs.close()

    app = FastAPI(
        title="Weft", version="1", description=DESCRIPTION, lifespan=lifespan, docs_url=None, redoc_url=None,
        openapi_url=None, redirect_slashes=False,
    )  # fmt: skip
    for part in (status, completions, chats, embeddings, tasks, document):
        app.include_router(part.router)
    document.keep_document(app, state)
    handlers: dict[Any, Any] = {
        RequestValidationError: _on_validation,
        HTTPException: _on_http,
        ClientGone: _on_gone,
        **dict.fromkeys((WeftError, TextInterrupted, ModelFailed, Exception), _on_failure),
    }
    for kind, handler in handlers.items():
        app.add_exception_handler(kind, handler)
    return Gate(app, state)


def _told(request: Request, error: ApiError) -> Response:
    record_of(request).more["error"] = error.code or error.tree["error"]["type"]
    return error_answer(error)


async def _on_validation(request: Request, error: RequestValidationError) -> Response:
    return _told(request, from_validation(error.errors()))


async def _on_http(request: Request, error: HTTPException) -> Response:
    return _told(request, from_http(error))


async def _on_gone(request: Request, error: ClientGone) -> Response:
    return Response(status_code=GONE)


async def _on_failure(request: Request, error: Exception) -> Response:
    return _told(request, as_api_error(error, request))
