"""Conversations: a chat with a language model, turn by turn.

Each turn's prompt is the whole chat as the template writes it, and each answer is what `generate` makes of that prompt.
What a prompt shares with the turns before is in the session's state and is not read again. When a chat gets longer
than the model reads, its oldest turns are left out; the system prompt stays.
"""

from __future__ import annotations

import sys
from collections.abc import Generator
from dataclasses import dataclass
from typing import Literal

from torch import nn

from weft.data.tokenizers.tokenizer import Tokenizer
from weft.foundation.errors import LengthError, WeftError
from weft.inference.decoding.conditioning import condition, declared, eval_mode
from weft.inference.decoding.detokenizer import Detokenizer
from weft.inference.decoding.generate import stream
from weft.inference.decoding.request import GenerationRequest
from weft.inference.decoding.sessions import RewindableSession
from weft.inference.decoding.speculative import speculates_unasked, stream_speculative
from weft.tasks.support.language.chat_prompts import ChatPrompts
from weft.tasks.support.language.generation import TEMPERATURE
from weft.tasks.support.language.prompt_format import PromptFormat
from weft.tasks.task import GenerationOptions

ANSWER_TOKENS = 1024  # tokens of an answer at most, if no number is asked for


@dataclass(frozen=True)
class Turn:
    """A question and its answer.

    `prompt_tokens`: length of the prompt, of which `reused_tokens` were not read again; `tokens`: number of new ones;
    `left_out`: number of the oldest turns that the prompt had no room for.
    """

    user: str
    assistant: str
    finish_reason: Literal["stop", "length", "interrupted"]
    prompt_tokens: int
    reused_tokens: int
    tokens: int
    left_out: int


class Conversation:
    """The turns so far, and the session that goes on from them. `say` gives the answer piece by piece.

    `template`: name or file of a chat template in place of the model's own.
    """

    def __init__(
        self,
        module: nn.Module,
        tokenizer: Tokenizer,
        prompt_format: PromptFormat,
        generation: GenerationOptions,
        system: str | None = None,
        template: str | None = None,
    ) -> None:
        _expect_one_answer(generation)
        self.module, self.tokenizer, self.generation = module, tokenizer, generation
        self.prompts, self.system = ChatPrompts(tokenizer, prompt_format, template), system
        self.turns: list[Turn] = []
        self.left_out = 0
        self.said = 0  # answers begun, retried ones included: each is sampled by a seed of its own
        self.length = declared(module).length
        self.stop, ends = self.prompts.stops()
        self.stop_strings = (*generation.stop, *ends)
        with eval_mode(module):
            self.session = RewindableSession(condition(module, 1))

    def say(self, text: str) -> Generator[str]:
        """The answer to what the user says, piece by piece; an answer that is broken off is kept as far as it came."""
        prompt, max_tokens, left_out = self._fit(text)
        request = GenerationRequest(
            [prompt],
            self.generation.sampling(TEMPERATURE),
            max_tokens=max_tokens,
            stop=self.stop,
            seeds=self.generation.seed + self.said,
            detokenizer=Detokenizer(self.tokenizer, self.stop_strings),
        )
        self.left_out, self.said = left_out, self.said + 1
        speculative = self.generation.speculative
        if speculative is None:
            speculative = speculates_unasked(self.module, request)
        decode = stream_speculative if speculative else stream
        pieces: list[str] = []
        reason, tokens = None, 0
        try:
            for step in decode(self.module, request, self.session):
                tokens, reason = tokens + 1, step.finish_reason
                pieces.append(step.text)
                if step.text:
                    yield step.text
        except GeneratorExit:  # between two tokens: the state is sound
            raise
        except BaseException:
            self.session.forget()
            raise
        finally:
            if tokens:
                counts = (len(prompt), self.session.reused, tokens, left_out)
                self.turns.append(Turn(text, "".join(pieces), reason or "interrupted", *counts))

    def retry(self) -> Generator[str]:
        """Another answer to the last question, in place of the one it had; sampled by another seed."""
        if not self.turns:
            raise WeftError("there is no answer to try again: say something first")
        turn = self.turns.pop()
        kept = len(self.turns)
        try:
            yield from self.say(turn.user)
        finally:
            if len(self.turns) == kept:
                self.turns.append(turn)

    def clear(self) -> None:
        """Forget all turns; the system prompt stays."""
        self.turns, self.left_out = [], 0

    def messages(self, first: int = 0) -> list[dict[str, str]]:
        """The chat from turn `first` on as messages with a role and a content, after the system prompt."""
        found = [] if self.system is None else [{"role": "system", "content": self.system}]
        for turn in self.turns[first:]:
            found.append({"role": "user", "content": turn.user})
            found.append({"role": "assistant", "content": turn.assistant})
        return found

    def _fit(self, text: str) -> tuple[list[int], int, int]:
        """The prompt, the number of tokens that may follow it, and the number of turns that are left out of it.

        Turns are left out for the sake of an answer of up to half the model's length; a longer one takes what is left.
        """
        length = self.length or sys.maxsize
        wanted = self.generation.max_tokens or ANSWER_TOKENS
        reserved = min(wanted, -(-length // 2))
        for first in range(min(self.left_out, len(self.turns)), len(self.turns) + 1):
            prompt = self.prompts.ids([*self.messages(first), {"role": "user", "content": text}])
            room = length - len(prompt) + 1  # the last token generated is never read
            if reserved <= room:
                return prompt, min(wanted, room), first
        if room < 1:
            raise LengthError(
                f"this message and the system prompt are {len(prompt)} tokens, but the model reads {length}: "
                "shorten them"
            )
        return prompt, room, first


def _expect_one_answer(generation: GenerationOptions) -> None:
    if generation.beam is not None or generation.samples != 1:
        raise WeftError("a chat goes on from one answer, which is sampled: leave beam and samples out")
