"""What a token store must know of a model's prompt format; `weft.tasks` implements it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from weft.foundation.spec import Tree

Messages = Sequence[Mapping[str, str]]
AnswerSpans = tuple[tuple[int, int], ...]


class RenderedChat(NamedTuple):
    """A chat rendered as one text, and the character spans in which the assistant speaks."""

    text: str
    answers: AnswerSpans


class ChatRenderer(Protocol):
    """Renders chats as a model was trained to read them."""

    def training_texts(self, messages: Messages) -> Sequence[RenderedChat]:
        """The texts that teach a chat."""


class PromptFormatProtocol(Protocol):
    """Ids before each text, ids at which a text stops (the first one ends it), and how chats are rendered."""

    @property
    def before(self) -> tuple[int, ...]:
        """Ids before each text."""

    @property
    def stops(self) -> tuple[int, ...]:
        """Ids at which a text stops; empty where the tokenizer's own stop token is used."""

    @property
    def chat(self) -> ChatRenderer | None:
        """Renders chats; None where each role has a token of its own."""

    def to_tree(self) -> Tree:
        """All of it as plain JSON; empty for the default format."""
