"""What a model was taught on texts, as far as a store of tokens must know it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from weft.foundation.spec import Tree

Messages = Sequence[Mapping[str, str]]
AnswerSpans = tuple[tuple[int, int], ...]


class RenderedChat(NamedTuple):
    """A chat as one text, and from which character to which the assistant speaks."""

    text: str
    answers: AnswerSpans


class ChatWriter(Protocol):
    """Writes chats as a model was taught to read them."""

    def training_texts(self, messages: Messages) -> Sequence[RenderedChat]:
        """The texts to learn a chat from."""


class PromptFormatProtocol(Protocol):
    """Ids before each text, ids at which it stops (the first one ends a text), and how chats are written."""

    @property
    def before(self) -> tuple[int, ...]:
        """What stands before each text."""

    @property
    def stops(self) -> tuple[int, ...]:
        """Where texts stop; none where the tokenizer's own will do."""

    @property
    def chat(self) -> ChatWriter | None:
        """The writer of chats; None where each role has a token of its own."""

    def to_tree(self) -> Tree:
        """All of it as plain JSON; empty where nothing was taught."""
