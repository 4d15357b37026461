"""The body of /v1/chat/completions."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, WithJsonSchema, field_validator, model_validator

from weft.serving.requests.fields import Body, Text, Whole, neutral, refusal
from weft.serving.requests.sampling_fields import SamplingBody

NAME = r"^[A-Za-z0-9_-]{1,64}$"
PART = {
    "type": "object",
    "properties": {"type": {"enum": ["text"]}, "text": {"type": "string"}},
    "required": ["type", "text"],
    "additionalProperties": False,
}
CONTENT = {"anyOf": [{"type": "string"}, {"type": "array", "items": PART, "minItems": 1}]}


class Message(Body):
    """What one side said; an answer can be sent back as it came, with its fields that are empty."""

    role: Literal["system", "developer", "user", "assistant"]
    content: Annotated[Text, WithJsonSchema(CONTENT)]
    name: Annotated[str, Field(pattern=NAME)] | None = None
    refusal: neutral() = None  # type: ignore[valid-type]
    audio: neutral() = None  # type: ignore[valid-type]
    function_call: neutral() = None  # type: ignore[valid-type]
    tool_calls: neutral([]) = Field(default_factory=list)  # type: ignore[valid-type]
    annotations: neutral([]) = Field(default_factory=list)  # type: ignore[valid-type]

    @field_validator("content", mode="before")
    @classmethod
    def _joined(cls, given: Any) -> Any:
        """Parts of text as one text; other parts are refused."""
        if not isinstance(given, list):
            return given
        for part in given:
            if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
                kind = part.get("type") if isinstance(part, dict) else None
                raise ValueError(f"parts of type {str(kind)[:40]!r} are not supported: send parts of type text")
            if set(part) - {"type", "text"}:
                raise ValueError("a part of type text has a text and nothing else")
        if not given:
            raise ValueError("a content without parts says nothing: send a text")
        return "".join(part["text"] for part in given)

    def to_tree(self) -> dict[str, str]:
        """As chat templates take it."""
        role = "system" if self.role == "developer" else self.role
        return {"role": role, "content": self.content, **({} if self.name is None else {"name": self.name})}


class ResponseFormat(Body):
    """Plain text is the only one."""

    type: neutral("text")  # type: ignore[valid-type]


class ChatBody(SamplingBody):
    """A chat that the model answers."""

    messages: list[Message] = Field(min_length=1)
    max_tokens: Annotated[Whole, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[Whole, Field(ge=1)] | None = None
    logprobs: bool = False
    top_logprobs: Annotated[Whole, Field(ge=0)] | None = Field(None, description="needs logprobs: true")
    response_format: ResponseFormat | None = None
    tools: neutral([]) = Field(default_factory=list)  # type: ignore[valid-type]
    tool_choice: neutral("none", "auto", why="is not supported: there are no tools") = "none"  # type: ignore[valid-type]
    functions: neutral([]) = Field(default_factory=list)  # type: ignore[valid-type]
    function_call: neutral("none", "auto", why="is not supported: there are no functions") = "none"  # type: ignore[valid-type]
    parallel_tool_calls: neutral(True, False) = True  # type: ignore[valid-type]
    modalities: neutral(["text"]) = Field(default_factory=lambda: ["text"])  # type: ignore[valid-type]
    store: neutral(False) = False  # type: ignore[valid-type]
    service_tier: neutral("auto", "default") = "auto"  # type: ignore[valid-type]
    reasoning_effort: neutral("none") = "none"  # type: ignore[valid-type]
    verbosity: neutral("medium") = "medium"  # type: ignore[valid-type]
    audio: neutral() = None  # type: ignore[valid-type]
    prediction: neutral() = None  # type: ignore[valid-type]

    @model_validator(mode="after")
    def _expect_sense(self) -> ChatBody:
        if self.top_logprobs and not self.logprobs:
            raise refusal("top_logprobs", "top_logprobs needs logprobs: true")
        if None not in (self.max_tokens, self.max_completion_tokens) and self.max_tokens != self.max_completion_tokens:
            raise refusal("max_tokens", "max_tokens and max_completion_tokens differ: give one of them")
        return self

    @property
    def most_tokens(self) -> int | None:
        """Largest number of new tokens, if one is asked for."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens
