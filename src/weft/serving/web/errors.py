"""Errors of the API, all of one form: {"error": {"message", "type", "param", "code"}}."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from starlette.exceptions import HTTPException
from starlette.responses import Response

KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "method_not_allowed",
    408: "timeout",
    413: "request_too_large",
    415: "unsupported_media_type",
    429: "rate_limit_error",
    431: "request_too_large",
    500: "server_error",
    503: "server_error",
}
MOST_WORDS = 600  # characters of a message: it may quote what the client sent


class ApiError(HTTPException):
    """An answer that says what is wrong; `retry_after` seconds go into the header of that name."""

    def __init__(
        self,
        status: int,
        message: str,
        param: str | None = None,
        code: str | None = None,
        retry_after: int | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        more = dict(headers or {})
        if retry_after is not None:
            more["retry-after"] = str(retry_after)
        super().__init__(status, message[:MOST_WORDS], more)
        self.param, self.code = param, code

    @property
    def tree(self) -> dict[str, Any]:
        """The body of the answer."""
        return error_tree(self.status_code, str(self.detail), self.param, self.code)


class ClientGone(Exception):
    """The client has closed the connection before its answer was there."""


def error_tree(status: int, message: str, param: str | None = None, code: str | None = None) -> dict[str, Any]:
    """An error as clients of OpenAI read it."""
    kind = KINDS.get(status, "server_error" if status >= 500 else "invalid_request_error")
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def to_json(value: Any) -> bytes:
    """JSON in UTF-8; halves of surrogate pairs, which UTF-8 has not, are escaped."""
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    except UnicodeEncodeError:
        return json.dumps(value, allow_nan=False, separators=(",", ":")).encode()


class JsonAnswer(Response):
    """An answer in JSON."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return to_json(content)


def error_answer(error: ApiError) -> JsonAnswer:
    """The response of an error."""
    return JsonAnswer(error.tree, error.status_code, error.headers)


def invalid_request(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    """What is asked for is wrong or not supported."""
    return ApiError(400, message, param, code)


def from_http(error: HTTPException) -> ApiError:
    """A framework's error (404, 405, a body that is no JSON) in the form of this API."""
    if isinstance(error, ApiError):
        return error
    messages = {
        404: "there is no such path: see /docs for those that there are",
        405: "this path does not take this method: see /docs",
        400: "the body could not be read: send JSON in UTF-8",
    }
    message = messages.get(error.status_code, str(error.detail))
    return ApiError(error.status_code, message, headers=error.headers)


def from_validation(errors: Sequence[Mapping[str, Any]]) -> ApiError:
    """The first of pydantic's complaints, with the field it is about."""
    if not errors:
        return invalid_request("the request is not valid")
    first = max(errors, key=lambda error: len(error["loc"])) if _is_union(errors) else errors[0]
    place = [str(part) for part in first["loc"] if part != "body" and not _is_branch(part)]
    param = ".".join(place) or first.get("ctx", {}).get("param")
    if first["type"] == "json_invalid":
        return invalid_request(f"the body is not JSON ({first.get('ctx', {}).get('error', 'syntax')})")
    if first["type"] == "missing" and param is None:
        return invalid_request("there is no body: send JSON with the header content-type: application/json")
    if first["type"] in ("model_attributes_type", "model_type", "dict_type") and param is None:
        return invalid_request("the body is to be an object of JSON: {...}")
    message = str(first["msg"]).removeprefix("Value error, ")
    if first["type"] == "missing":
        message = f"{param} is needed"
    elif first["type"] == "extra_forbidden":
        message = f"{param} is not a parameter of this endpoint"
    elif param is not None and not message.startswith(param):
        message = f"{param}: {message}"
    return invalid_request(message, param, "unknown_parameter" if first["type"] == "extra_forbidden" else None)


def _is_union(errors: Sequence[Mapping[str, Any]]) -> bool:
    return len(errors) > 1 and len({error["loc"][:2] for error in errors}) == 1


def _is_branch(part: Any) -> bool:
    """Whether a part of a place names an alternative of a union, not a field: `list[int]`, `function-after[...]`."""
    return isinstance(part, str) and (not part.replace("_", "a").isidentifier() or part in ("str", "int", "float"))
