"""The OpenAPI document of what this server serves, and /docs, a page on which its examples run."""

from __future__ import annotations

import base64
import hashlib
import io
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import numpy as np
from fastapi import APIRouter, FastAPI, Request
from fastapi.openapi.utils import get_openapi
from PIL import Image
from starlette.responses import HTMLResponse, Response

from weft.data.readers.sounds import write_sound
from weft.serving.endpoints.page import PAGE, SCRIPT
from weft.serving.endpoints.task_paths import PATHS, paths_of
from weft.serving.served.served_runs import ServedRun, ServedText
from weft.serving.state import ServerState
from weft.serving.web.errors import JsonAnswer

STEPS = 16  # of an example
BOUNDS = {"ge": "minimum", "le": "maximum", "gt": "exclusiveMinimum", "lt": "exclusiveMaximum"}
router = APIRouter(include_in_schema=False)
HASH = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
POLICY = (
    f"default-src 'none'; connect-src 'self'; style-src 'unsafe-inline'; script-src 'sha256-{HASH}'; base-uri 'none'"
)


@router.get("/openapi.json")
async def openapi(request: Request) -> Response:
    """The document, made at its first use."""
    document: dict[str, Any] = request.app.openapi()
    return JsonAnswer(document)


@router.get("/docs")
async def page(request: Request) -> Response:
    """Every path, with an example to run."""
    return HTMLResponse(PAGE, headers={"content-security-policy": POLICY})


def describe(app: FastAPI, state: ServerState) -> dict[str, Any]:
    """The paths that a served run answers at, each with an example that works; keys where they are needed."""
    document = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
    examples = examples_of(state)
    for path in list(document["paths"]):
        post = document["paths"][path].get("post")
        if post is None:
            continue
        if path not in examples:
            del document["paths"][path]
            continue
        content = post["requestBody"]["content"]["application/json"]
        content["example"] = examples[path]
        body = document["components"]["schemas"][content["schema"]["$ref"].rpartition("/")[2]]
        _name_models(body, [run for run in state.runs.by_name.values() if path in paths_of(run)])
    for methods in document["paths"].values():
        for method in methods.values():
            method["responses"].pop("422", None)
    for name in ("HTTPValidationError", "ValidationError"):
        document.get("components", {}).get("schemas", {}).pop(name, None)
    document["components"] = _with_bounds(document.get("components", {}))
    if state.keys:
        document.setdefault("components", {})["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        document["security"] = [{"key": []}]
    return document


def _with_bounds(tree: Any) -> Any:
    """Bounds by their names in JSON schema: inside unions, pydantic leaves its own."""
    if isinstance(tree, dict):
        return {BOUNDS.get(name, name): _with_bounds(value) for name, value in tree.items()}
    return [_with_bounds(value) for value in tree] if isinstance(tree, list) else tree


def _name_models(body: dict[str, Any], runs: list[ServedRun]) -> None:
    """Which runs a request can choose from; it has to, where there are several."""
    body["properties"]["model"] = {"enum": [run.name for run in runs], "description": "the served run that answers"}
    if len(runs) > 1:
        body["required"] = sorted({*body.get("required", ()), "model"})


def examples_of(state: ServerState) -> dict[str, dict[str, Any]]:
    """For each path, a body that the first run which answers there takes."""
    found: dict[str, dict[str, Any]] = {}
    for run in state.runs.by_name.values():
        for path, body in _examples(run).items():
            found.setdefault(path, {"model": run.name, **body})
    return found


def _examples(run: ServedRun) -> dict[str, dict[str, Any]]:
    if isinstance(run, ServedText):
        examples: dict[str, dict[str, Any]] = {
            "/v1/completions": {"prompt": "Once", "max_tokens": 16, "temperature": 0.8, "seed": 1}
        }
        if run.chat is not None:
            messages = [{"role": "user", "content": "Hello!"}]
            examples["/v1/chat/completions"] = {"messages": messages, "max_tokens": 32, "seed": 1}
        return examples
    return {path: _task_example(run, path) for path in PATHS.get(run.task, ())}


def _task_example(run: ServedRun, path: str) -> dict[str, Any]:
    """An input of the right kind and size; what comes of it need not make sense."""
    task = cast(Any, run.run.task)
    if path.endswith("/image"):
        return {"input": tiny_image(), **({"labels": ["a cat", "a dog"]} if task.takes_labels else {})}
    if path.endswith("/caption"):
        return {"input": tiny_image(), **({"question": "What is this?"} if task.takes_questions else {})}
    if path.endswith("/forecast"):
        known = task.known
        return {"input": [[float(value) for value in known.mean]] * int(known.context)}
    if path.endswith(("/sequence", "/transcribe")):
        return {"input": vectors_or_sound(task)}
    if path.endswith("/classify") and not task.takes_texts:
        return {"input": {"nodes": ["a", "b"], "edges": [[0, 1]]}, "probabilities": True}
    if path.endswith("/fill-mask"):
        return {"input": f"This is a {task.mask_token} text."}
    if path.endswith("/translate"):
        return {"input": "the 3rd of May 1987", "alignment": True}
    return {"input": "What a fine day"}


def vectors_or_sound(task: Any) -> Any:
    """A sequence of vectors of as many channels as the run learned from, or a moment of silence."""
    sources = getattr(task, "sources", None)
    if sources is None:
        return [[0.0] * int(task.raw)] * STEPS
    if sources["rate"] is None:
        return [[0.0] * int(sources["channels"])] * STEPS
    with TemporaryDirectory(prefix="weft-") as folder:
        path = Path(folder) / "sound.wav"
        write_sound(path, np.zeros(int(sources["rate"]) // 2, dtype=np.float32), int(sources["rate"]))
        return base64.b64encode(path.read_bytes()).decode()


def tiny_image() -> str:
    """A picture of 16 x 16 pixels, as a data URL."""
    file = io.BytesIO()
    Image.linear_gradient("L").resize((16, 16)).convert("RGB").save(file, "PNG")
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"


def keep_document(app: FastAPI, state: ServerState) -> None:
    """Make the document once, at its first use."""

    def made() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = describe(app, state)
        return app.openapi_schema

    app.openapi = made  # type: ignore[method-assign]
