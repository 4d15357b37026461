"""The bodies of /v1/tasks/...: one input or several, and what is to be told beside the answers."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, JsonValue, WithJsonSchema

from weft.serving.requests.fields import Body, Number, Text, Whole

Flag = Annotated[bool, Field(description="told only if true")]
STRING: dict[str, Any] = {"type": "string"}
NUMBER: dict[str, Any] = {"type": "number"}


def _list(item: dict[str, Any], least: int = 1) -> dict[str, Any]:
    return {"type": "array", "items": item, "minItems": least}


GRAPH = {
    "type": "object",
    "required": ["nodes", "edges"],
    "properties": {"nodes": _list(STRING), "edges": _list(_list({"type": "integer", "minimum": 0}, 2), 0)},
}
SERIES = {"anyOf": [_list(NUMBER), _list(_list(NUMBER)), _list(_list(_list(NUMBER)))]}
SEQUENCES = {"anyOf": [STRING, _list(STRING), _list(_list(NUMBER)), _list(_list(_list(NUMBER)))]}
Texts = Annotated[JsonValue, WithJsonSchema({"anyOf": [STRING, _list(STRING)]})]


class TaskBody(Body):
    """`input`: one, or a list of several."""

    model: Text = Field("", description="name of a served run; may be left out where only one fits")


class WriterBody(TaskBody):
    """How an answer is written token by token; greedy or by the run's own beam if nothing is said."""

    beam: Annotated[Whole, Field(ge=1, le=64)] | None = None
    temperature: Annotated[Number, Field(ge=0, le=100)] | None = None
    top_k: Annotated[Whole, Field(ge=1)] | None = None
    top_p: Annotated[Number, Field(gt=0, le=1)] | None = None
    seed: Whole = Field(0, ge=0, lt=1 << 62)
    n: Whole = Field(1, ge=1, le=64, description="answers to each input")
    max_tokens: Annotated[Whole, Field(ge=1, le=1 << 20)] | None = None
    tokens: Flag = False

    @property
    def options(self) -> dict[str, Any]:
        """As `Run.answer` takes them."""
        names = ("beam", "temperature", "top_k", "top_p", "max_tokens")
        given = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        return {**given, "seed": self.seed, "samples": self.n}


class TranslateBody(WriterBody):
    """Texts to translate."""

    input: Texts
    alignment: Flag = False
    confidence: Flag = False
    probabilities: Annotated[Whole, Field(ge=1, le=100)] | None = Field(
        None, description="likeliest first tokens to tell"
    )


class TextLabelBody(TaskBody):
    """Texts to classify; graphs, for a run that learned from such."""

    input: Annotated[JsonValue, WithJsonSchema({"anyOf": [STRING, _list(STRING), GRAPH, _list(GRAPH)]})]
    probabilities: Flag = False
    tokens: Flag = False


class TagBody(TaskBody):
    """Sentences to tag: texts, or lists of words."""

    input: Annotated[JsonValue, WithJsonSchema({"anyOf": [STRING, _list(STRING), _list(_list(STRING))]})]
    probabilities: Flag = False
    tokens: Flag = True


class ImageBody(TaskBody):
    """Images in base64; `labels` to choose between, for a run of images and texts."""

    input: Texts
    labels: list[Text] = Field(default_factory=list, max_length=1000)
    probabilities: Flag = False


class CaptionBody(WriterBody):
    """Images in base64; a question about them, for a run that answers such."""

    input: Texts
    question: Text | None = Field(None, max_length=4096)
    alignment: Flag = False
    confidence: Flag = False


class ForecastBody(TaskBody):
    """A history: numbers, rows of numbers, or several such; bands around the forecast."""

    input: Annotated[JsonValue, WithJsonSchema(SERIES)]
    bands: Flag = False


class SequenceBody(TaskBody):
    """Sequences of vectors, or sounds (.wav) in base64."""

    input: Annotated[JsonValue, WithJsonSchema(SEQUENCES)]
    probabilities: Flag = False


class TranscribeBody(WriterBody):
    """Sounds (.wav) in base64, or sequences of vectors."""

    input: Annotated[JsonValue, WithJsonSchema(SEQUENCES)]


class FillMaskBody(TaskBody):
    """Texts with masks."""

    input: Texts
    probabilities: Flag = False
    top: Whole = Field(5, ge=1, le=100)


class ScoreBody(TaskBody):
    """Texts to score; a pair is a list of two texts."""

    input: Annotated[JsonValue, WithJsonSchema({"anyOf": [STRING, _list(STRING), _list(_list(STRING, 2))]})]
