"""The body of /v1/completions."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, WithJsonSchema, field_validator, model_validator

from weft.serving.requests.fields import Whole, expect_text, neutral, refusal
from weft.serving.requests.sampling_fields import SamplingBody

DEFAULT_TOKENS = 16
Prompt = str | tuple[int, ...]
TOKEN = {"type": "integer", "minimum": 0}
PROMPTS = {
    "anyOf": [
        {"type": "string"},
        {"type": "array", "items": {"type": "string"}, "minItems": 1},
        {"type": "array", "items": TOKEN, "minItems": 1},
        {"type": "array", "items": {"type": "array", "items": TOKEN, "minItems": 1}, "minItems": 1},
    ]
}


def expect_prompts(given: Any, name: str) -> tuple[Prompt, ...]:
    """A string, a list of strings, token ids, or a list of such: one prompt each."""
    if isinstance(given, str):
        return (expect_text(given),)
    if not isinstance(given, list) or not given:
        raise ValueError(f"{name} is a string, a list of strings, token ids, or a list of token ids")
    if all(type(one) is int for one in given):
        return (_ids(given, name),)
    if all(isinstance(one, str) for one in given):
        return tuple(map(expect_text, given))
    if all(isinstance(one, list) and one and all(type(token) is int for token in one) for one in given):
        return tuple(_ids(one, name) for one in given)
    raise ValueError(f"{name} mixes kinds or has empty lists: give strings, or token ids, or lists of token ids")


def _ids(given: list[int], name: str) -> tuple[int, ...]:
    if min(given) < 0 or max(given) >= 1 << 31:
        raise ValueError(f"{name} holds a number that is no token id")
    return tuple(given)


class CompletionBody(SamplingBody):
    """A text that is continued."""

    prompt: Annotated[tuple[Any, ...], WithJsonSchema(PROMPTS)]
    max_tokens: Whole = Field(DEFAULT_TOKENS, ge=0)
    logprobs: Annotated[Whole, Field(ge=0)] | None = Field(
        None, description="likeliest tokens to tell beside the chosen one"
    )
    echo: bool = False
    best_of: Annotated[Whole, Field(ge=1)] | None = Field(None, description="must equal n")
    suffix: neutral("") = ""  # type: ignore[valid-type]

    @field_validator("prompt", mode="before")
    @classmethod
    def _prompts(cls, given: Any) -> Any:
        return expect_prompts(given, "prompt")

    @model_validator(mode="after")
    def _expect_something(self) -> CompletionBody:
        if self.max_tokens == 0 and not self.echo:
            raise refusal("max_tokens", "max_tokens of 0 gives nothing without echo: use at least 1")
        if self.best_of not in (None, 1, self.n):
            raise refusal("best_of", f"best_of {self.best_of} is not supported: leave it out")
        return self
