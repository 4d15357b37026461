"""Fields that bodies of requests share: null equals absent, neutral values pass, anything else is refused by name."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema, model_validator
from pydantic_core import PydanticCustomError


class Body(BaseModel):
    """The body of a request; a field that is null is left out, one that is not known is refused."""

    model_config = ConfigDict(extra="forbid", strict=True, json_schema_extra={"additionalProperties": False})

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, given: Any) -> Any:
        return {name: value for name, value in given.items() if value is not None} if isinstance(given, dict) else given


def refusal(param: str, message: str) -> PydanticCustomError:
    """What a check of several fields raises, with the one that is to be changed."""
    return PydanticCustomError("refused", message.replace("{", "{{").replace("}", "}}"), {"param": param})


def expect_text(text: str) -> str:
    """Refuse what UTF-8 cannot write."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("half of a surrogate pair is no character: send UTF-8 text") from None
    return text


def _as_number(value: Any) -> Any:
    """Whole numbers are numbers too; truth values are not."""
    if isinstance(value, bool):
        raise ValueError("a number is needed, not true or false")
    return float(value) if isinstance(value, int) and abs(value) < 1 << 53 else value


def _as_whole(value: Any) -> Any:
    """1.0 is a whole number in JSON."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


Text = Annotated[str, AfterValidator(expect_text)]
Number = Annotated[float, BeforeValidator(_as_number), Field(allow_inf_nan=False)]
Whole = Annotated[int, BeforeValidator(_as_whole)]


def neutral(*values: Any, why: str = "is not supported here") -> Any:
    """The type of a parameter that does nothing: any of `values` passes, others are refused."""

    def check(given: Any) -> Any:
        if any(type(given) in _alike(value) and given == value for value in values):
            return given
        raise ValueError(f"{_shown(given)} {why}: leave it out")

    schema = {"enum": [*values], "description": "accepted for compatibility; has no effect"}
    return Annotated[Any, BeforeValidator(check), WithJsonSchema(schema)]


def _alike(value: Any) -> tuple[type, ...]:
    return (int, float) if type(value) in (int, float) else (type(value),)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def ignored(description: str, kind: Any = Any) -> Any:
    """The type of a parameter that is allowed and has no effect, of any value of its kind."""
    return Annotated[kind, Field(description=description)]


AnyText = ignored("accepted for compatibility; has no effect", Text)
Metadata = ignored("accepted for compatibility; has no effect", dict[str, Any])
