"""The body of /v1/embeddings."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, WithJsonSchema, field_validator

from weft.serving.requests.completions import PROMPTS, expect_prompts
from weft.serving.requests.fields import AnyText, Body, Text, Whole


class EmbeddingBody(Body):
    """Texts, or token ids, that are to become vectors."""

    model: Text = Field("", description="name of a served run; may be left out where there is only one")
    input: Annotated[tuple[Any, ...], WithJsonSchema(PROMPTS)]
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: Annotated[Whole, Field(ge=1)] | None = Field(None, description="must be that of the model")
    user: AnyText = ""

    @field_validator("input", mode="before")
    @classmethod
    def _inputs(cls, given: Any) -> Any:
        inputs = expect_prompts(given, "input")
        if any(one == "" for one in inputs):
            raise ValueError("input has an empty text: leave it out")
        return inputs
