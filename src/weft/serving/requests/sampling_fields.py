"""What completions and chats share: how tokens are chosen, how many, where a text ends, and how it is sent."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, WithJsonSchema, field_validator

from weft.inference.decoding.sampling import Sampling
from weft.serving.requests.fields import AnyText, Body, Metadata, Number, Text, Whole, neutral

MOST_STOPS, LONGEST_STOP = 4, 256
SEEDS = 1 << 63


class StreamOptions(Body):
    """`include_usage`: a last chunk tells the numbers of tokens."""

    include_usage: bool = False
    include_obfuscation: neutral(False) = False  # type: ignore[valid-type]


def _stop_schema() -> dict[str, Any]:
    one = {"type": "string", "minLength": 1, "maxLength": LONGEST_STOP}
    return {"anyOf": [one, {"type": "array", "items": one, "maxItems": MOST_STOPS}]}


class SamplingBody(Body):
    """Parameters of generation; those of OpenAI's that do nothing here are listed with their neutral values."""

    model: Text = Field("", description="name of a served run; may be left out where there is only one")
    temperature: Number = Field(1.0, ge=0, le=100)
    top_p: Number = Field(1.0, ge=0, le=1)
    top_k: Annotated[Whole, Field(ge=-1)] | None = Field(None, description="an extension: -1 or 0 is off")
    min_p: Number = Field(0.0, ge=0, le=1, description="an extension")
    repetition_penalty: Number = Field(1.0, gt=0, le=100, description="an extension")
    n: Whole = Field(1, ge=1)
    seed: Annotated[Whole, Field(ge=-SEEDS, lt=SEEDS)] | None = Field(
        None, description="the same seed gives the same texts"
    )
    stop: Annotated[tuple[Text, ...], WithJsonSchema(_stop_schema())] = Field(())
    stream: bool = False
    stream_options: StreamOptions | None = None
    user: AnyText = ""
    metadata: Metadata = Field(default_factory=dict)
    frequency_penalty: neutral(0) = 0  # type: ignore[valid-type]
    presence_penalty: neutral(0) = 0  # type: ignore[valid-type]
    logit_bias: neutral({}) = Field(default_factory=dict)  # type: ignore[valid-type]

    @field_validator("stop", mode="before")
    @classmethod
    def _one_or_several(cls, given: Any) -> Any:
        texts = [given] if isinstance(given, str) else given
        if not isinstance(texts, (list, tuple)) or len(texts) > MOST_STOPS:
            raise ValueError(f"give a string or a list of at most {MOST_STOPS}")
        if any(isinstance(text, str) and not 0 < len(text) <= LONGEST_STOP for text in texts):
            raise ValueError(f"each stop string has 1 to {LONGEST_STOP} characters")
        return tuple(texts)

    @property
    def sampling(self) -> Sampling:
        """As the engine takes it; a `top_p` of 0 leaves the likeliest token, which is greedy."""
        greedy = self.temperature == 0 or self.top_p == 0
        return Sampling(
            0.0 if greedy else self.temperature,
            self.top_k if self.top_k is not None and self.top_k > 0 else None,
            self.top_p if 0 < self.top_p < 1 else None,
            self.min_p or None,
            self.repetition_penalty,
        )

    @property
    def wants_usage(self) -> bool:
        """Whether a stream ends with the numbers of tokens."""
        return self.stream_options is not None and self.stream_options.include_usage
