"""What the OpenAPI document says of answers: their form, and the form of all errors."""

from __future__ import annotations

from typing import Any

NULLABLE_TEXT = {"type": ["string", "null"]}
ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": NULLABLE_TEXT,
                "code": NULLABLE_TEXT,
            },
        }
    },
}
USAGE = {
    "type": "object",
    "required": ["prompt_tokens", "total_tokens"],
    "properties": {name: {"type": "integer"} for name in ("prompt_tokens", "completion_tokens", "total_tokens")},
}


def _object(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "required": list(properties), "properties": properties}


def _several(item: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": item}


TEXT, WHOLE = {"type": "string"}, {"type": "integer"}
HEAD = {"id": TEXT, "object": TEXT, "created": WHOLE, "model": TEXT}
ANSWERS: dict[str, dict[str, Any]] = {
    "completion": _object(
        **HEAD, choices=_several(_object(index=WHOLE, text=TEXT, finish_reason=NULLABLE_TEXT)), usage=USAGE
    ),
    "chat": _object(
        **HEAD,
        choices=_several(_object(index=WHOLE, message=_object(role=TEXT, content=TEXT), finish_reason=NULLABLE_TEXT)),
        usage=USAGE,
    ),
    "models": _object(object=TEXT, data=_several(_object(id=TEXT, object=TEXT, created=WHOLE, owned_by=TEXT))),
    "model": _object(id=TEXT, object=TEXT, created=WHOLE, owned_by=TEXT),
    "embeddings": _object(object=TEXT, data=_several(_object(object=TEXT, index=WHOLE)), model=TEXT, usage=USAGE),
    "task": _object(model=TEXT, answers=_several({"type": "object", "required": ["output"]})),
    "status": _object(status=TEXT),
}
STREAMED = ("completion", "chat")
REFUSALS = {
    400: "what is asked for is wrong or not supported; `param` names it",
    401: "no key, or an unknown one",
    403: "a name that is not this machine's",
    404: "no such model",
    408: "it took too long",
    413: "the body is too large",
    415: "the body is not JSON",
    429: "too much is asked of this server: try again after the seconds in the header retry-after",
    500: "the model failed",
    503: "the server is stopping",
}


def answers_of(kind: str) -> dict[int | str, dict[str, Any]]:
    """The answers of a path, errors included."""
    content: dict[str, Any] = {"application/json": {"schema": ANSWERS[kind]}}
    if kind in STREAMED:
        content["text/event-stream"] = {"schema": {"type": "string"}}
    found: dict[int | str, dict[str, Any]] = {200: {"description": "the answer", "content": content}}
    for status, words in REFUSALS.items():
        found[status] = {"description": words, "content": {"application/json": {"schema": ERROR}}}
    return found
