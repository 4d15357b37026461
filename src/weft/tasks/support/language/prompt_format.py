"""The prompt format of a model: ids around each text, ids at which it stops, how a chat is written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from weft.data.readers.texts import CHAT_ROLES, CHAT_TOKENS
from weft.data.stores.prompt_format_protocol import Messages, RenderedChat
from weft.data.tokenizers.tokenizer import Tokenizer
from weft.foundation.errors import WeftError
from weft.foundation.spec import Tree
from weft.tasks.support.language.sandboxed_templates import check_template, render_template


@dataclass(frozen=True)
class Frame:
    """Ids that stand before and after each text: a start token, or BERT's [CLS] and [SEP]."""

    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()

    @classmethod
    def of(cls, facts: Tree) -> Frame:
        return cls(tuple(facts.get("before", ())), tuple(facts.get("after", ())))

    def to_tree(self) -> Tree:
        """As facts of a run; nothing where there is nothing around."""
        return {name: list(ids) for name, ids in (("before", self.before), ("after", self.after)) if ids}

    def put(self, ids: Sequence[int], most: int | None = None) -> list[int]:
        """The ids with their frame; a text that is longer than `most` loses its end, not the frame."""
        room = None if most is None else max(0, most - len(self.before) - len(self.after))
        return [*self.before, *ids[:room], *self.after]


@dataclass(frozen=True)
class ChatTemplate:
    """A template in Jinja, as other libraries keep it with a model; it is run in a sandbox and a process of its own."""

    template: str
    names: Mapping[str, str] = field(default_factory=dict)

    def render(self, messages: Messages, answering: bool = True) -> str:
        """The text of a chat; `answering` opens the turn of the assistant."""
        variables = {"messages": [dict(message) for message in messages], "add_generation_prompt": answering}
        try:
            return render_template(self.template, {**variables, "tools": None, "documents": None, **self.names})
        except WeftError as error:
            raise WeftError(f"this model's chat template refuses these messages ({error})") from None

    def check(self, name: str) -> None:
        """Refuse a template that is no Jinja."""
        try:
            check_template(self.template)
        except WeftError as error:
            raise WeftError(f"{name} is not a chat template in Jinja ({error})") from None

    def turn_end(self) -> str:
        """What is written after an answer, where it shows that the answer is over.

        A mark of its own (`<|im_end|>`), else what opens the next turn (`User:`); nothing where neither can be told.
        """
        user, answer, following = (f"@{name}@" for name in ("QUESTION", "ANSWER", "NEXT"))
        turns = [{"role": "user", "content": user}, {"role": "assistant", "content": answer}]
        try:
            last = self.render(turns, answering=False).rpartition(answer)[2]
            between = self.render([*turns, {"role": "user", "content": following}]).rpartition(answer)[2]
        except WeftError:
            return ""
        between = between.partition(following)[0]
        pairs = enumerate(zip(last, between, strict=False))
        same = next((n for n, (one, other) in pairs if one != other), min(len(last), len(between)))
        return last[:same].strip() or between.rstrip()

    def training_texts(self, messages: Messages) -> list[RenderedChat]:
        """The chat as a text to learn from, and where the assistant speaks: all that follows what opens its turn.

        Some templates write what came before otherwise when a chat goes on (they drop thoughts, say): then each
        answer makes a text of its own, after what the model reads before it.
        """
        found: list[RenderedChat] = []
        for place, message in enumerate(messages):
            if message["role"] != CHAT_ROLES[-1]:
                continue
            text = self.render(messages[: place + 1], answering=False)
            answer = (self._opened(messages[:place], text), len(text))
            if found and text.startswith(found[-1].text):
                found[-1] = RenderedChat(text, (*found[-1].answers, answer))
            else:
                found.append(RenderedChat(text, (answer,)))
        return found or [RenderedChat(self.render(messages, answering=False), ())]

    def _opened(self, asked: Messages, text: str) -> int:
        """Where the answer to what is asked begins in the text of both."""
        opened = self.render(asked)
        if text.startswith(opened):
            return len(opened)
        pairs = enumerate(zip(opened, text, strict=False))
        first = next((place for place, (one, other) in pairs if one != other), min(len(opened), len(text)))
        if first < len(self.render(asked, answering=False).rstrip()):
            raise WeftError(
                "this model's chat template formats a question differently once it is answered, so that no answer "
                "can be located: give the chats as texts"
            )
        return first


@dataclass(frozen=True)
class PromptFormat:
    """How texts begin for a language model, where they stop, and how chats are written."""

    before: tuple[int, ...] = ()
    stops: tuple[int, ...] = ()
    chat: ChatTemplate | None = None

    @classmethod
    def of(cls, facts: Tree) -> PromptFormat:
        chat: Any = facts.get("chat")
        template = None if chat is None else ChatTemplate(str(chat["template"]), dict(chat.get("names", {})))
        return cls(tuple(facts.get("before", ())), tuple(facts.get("stops", ())), template)

    def stopping(self, tokenizer: Tokenizer) -> tuple[int, ...]:
        """The ids at which a text stops: those of this format, else the tokenizer's own."""
        return self.stops or (() if tokenizer.stop is None else (tokenizer.stop,))

    def can_chat(self, tokenizer: Tokenizer) -> bool:
        """Whether the model was trained to chat: it has a template, or a token for each role."""
        return self.chat is not None or tokenizer.id_of(CHAT_TOKENS[-1]) is not None

    def chat_ids(self, messages: Messages, tokenizer: Tokenizer) -> list[int]:
        """A chat as the model reads it, up to where the assistant answers; messages have a role and a content.

        A model trained here on chats has a token for each role in place of a template.
        """
        if self.chat is not None:
            return tokenizer.encode(self.chat.render(messages))
        marks = {role: tokenizer.id_of(name) for role, name in zip(CHAT_ROLES, CHAT_TOKENS, strict=True)}
        answer = marks[CHAT_ROLES[-1]]
        if answer is None:
            raise WeftError("this model was not trained to chat: leave --chat out, or import or train one that was")
        ids: list[int] = []
        for message in messages:
            mark = marks.get(message["role"])
            if mark is None:
                raise WeftError(f"a message has the role {message['role']!r:.40}: use one of {', '.join(CHAT_ROLES)}")
            end = self.stopping(tokenizer)[:1] if message["role"] == CHAT_ROLES[-1] else ()
            ids += [mark, *tokenizer.encode(message["content"]), *end]
        return [*ids, answer]

    def to_tree(self) -> Tree:
        """As facts of a run; nothing where the format is empty."""
        facts: Tree = {name: list(ids) for name, ids in (("before", self.before), ("stops", self.stops)) if ids}
        if self.chat is not None:
            facts["chat"] = {"template": self.chat.template, "names": dict(self.chat.names)}
        return facts
