"""Chats as prompts of a model: by its own template or another one, with what ends an answer.

Special tokens that a message spells out (`<|im_end|>`) are read as plain text where that is asked for: else whoever
writes a message could end its turn and begin another, the system's.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tokenizers import Tokenizer as Engine

from weft.data.tokenizers.tokenizer import Tokenizer
from weft.foundation.errors import WeftError
from weft.tasks.support.language.chat_templates import TEMPLATES, read_template
from weft.tasks.support.language.prompt_format import PromptFormat

# A special token in a message stands as its number between two characters that no text has while the template runs.
OPEN, CLOSE = "\ue000", "\ue001"
MARK = re.compile(f"{OPEN}([0-9]+){CLOSE}")


class ChatPrompts:
    """How messages become ids; `template` is the name or file of a chat template in place of the model's own."""

    def __init__(self, tokenizer: Tokenizer, prompt_format: PromptFormat, template: str | None = None) -> None:
        self.tokenizer = tokenizer
        self.before: tuple[int, ...] = ()
        if template is not None:
            self.before = prompt_format.before
            prompt_format = replace(prompt_format, chat=read_template(template, prompt_format, tokenizer))
        if not prompt_format.can_chat(tokenizer):
            raise WeftError(
                "this model has no chat template, it was not trained to chat: give one with --template "
                f"({', '.join(TEMPLATES)}, or a Jinja file), or use weft predict"
            )
        self.prompt_format = prompt_format
        self._plain: Engine | None = None
        self._specials: tuple[str, ...] | None = None

    def ids(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        """A chat as the model reads it, up to where the assistant answers."""
        return self._begun(self.prompt_format.chat_ids([dict(one) for one in messages], self.tokenizer))

    def guarded_ids(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        """The same, with special tokens in messages as plain text; messages without any are read as by `ids`."""
        if not any(name in str(one["content"]) for one in messages for name in self.specials):
            return self.ids(messages)
        if self.prompt_format.chat is None:  # each message is read by itself
            return self.prompt_format.chat_ids([dict(one) for one in messages], Tokenizer(self._plain_engine()))
        marked = [{**one, "content": self._mark(str(one["content"]))} for one in messages]
        pieces = MARK.split(self.prompt_format.chat.render(marked))
        found: list[int] = []
        for place, piece in enumerate(pieces):
            found += self._spelled(self.specials[int(piece)]) if place % 2 else self.tokenizer.encode(piece)
        return self._begun(found)

    def stops(self) -> tuple[tuple[int, ...], tuple[str, ...]]:
        """Ids and strings at which an answer ends: the model's own, and the template's end of a turn."""
        ids = self.prompt_format.stopping(self.tokenizer)
        end = "" if self.prompt_format.chat is None else self.prompt_format.chat.turn_end()
        mark = self.tokenizer.id_of(end) if end else None
        if mark is not None:
            return (*ids, *(() if mark in ids else (mark,))), ()
        return ids, (end,) if end else ()

    @property
    def specials(self) -> tuple[str, ...]:
        """The names of tokens that are read as one wherever they stand in a text, long ones first."""
        if self._specials is None:
            added = self.tokenizer.engine.get_added_tokens_decoder().values()
            names = {str(token.content) for token in added if token.special and str(token.content).strip()}
            self._specials = tuple(sorted(names, key=lambda name: (-len(name), name)))
        return self._specials

    def _begun(self, ids: list[int]) -> list[int]:
        # A template of another model may lack the token that every text of this one begins with.
        return ids if tuple(ids[: len(self.before)]) == self.before else [*self.before, *ids]

    def _mark(self, text: str) -> str:
        text = text.replace(OPEN, "").replace(CLOSE, "")
        names = "|".join(re.escape(name) for name in self.specials)
        return re.sub(names, lambda found: f"{OPEN}{self.specials.index(found[0])}{CLOSE}", text)

    def _spelled(self, name: str) -> list[int]:
        """A special token's name as plain text."""
        return list(self._plain_engine().encode(name, add_special_tokens=False).ids)

    def _plain_engine(self) -> Engine:
        if self._plain is None:
            plain = Engine.from_str(self.tokenizer.engine.to_str())
            plain.encode_special_tokens = True
            self._plain = plain  # complete before another thread sees it
        return self._plain
