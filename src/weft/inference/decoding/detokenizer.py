"""Detokenizing: text from tokens as they come, only what is complete, and never a part of a stop string.

A token may be a part of a character's UTF-8 bytes; a stop string may span tokens. Both are held back until decided, so
what is given out is never taken back, and all of it together is the text that the tokens decode to.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from weft.data.tokenizers.tokenizer import Tokenizer
from weft.foundation.errors import WeftError

BROKEN = "\ufffd"
REMEMBERED = 8  # tokens of what a text goes on from


@dataclass(frozen=True)
class Detokenizer:
    """A tokenizer, and the strings at which a text stops; they are not a part of the text."""

    tokenizer: Tokenizer
    stop: Sequence[str] = ()

    def __post_init__(self) -> None:
        if isinstance(self.stop, str) or not all(self.stop):
            raise WeftError("stop strings are a list of texts that are not empty, for example ['\\n\\n']")

    def stream(self, before: Sequence[int] = ()) -> TextStream:
        """A stream for one text, which goes on from the tokens before it."""
        return TextStream(self.tokenizer, self.stop, before)

    def decode(self, tokens: Sequence[int], before: Sequence[int] = ()) -> str:
        """The text of `tokens`, which follow the tokens before them, up to a stop string."""
        stream = self.stream(before)
        return stream.feed(*tokens) + stream.finish()


class TextStream:
    """Feed ids, get complete text; `stopped` once a stop string came, after which nothing more is given.

    `before` is what the text goes on from: SentencePiece leaves out the space before a text's first word.
    """

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str] = (), before: Sequence[int] = ()) -> None:
        self.tokenizer, self.stop = tokenizer, tuple(stop)
        self.ids = list(before)[-REMEMBERED:]
        self.window = 0  # decoding starts here: some tokenizers treat a text's first token differently
        self.read = len(self.ids)
        self.held = ""
        self.stopped = False

    def feed(self, *ids: int) -> str:
        """The text that these ids make certain."""
        self.ids += ids
        return self._release(self._complete())

    def step(self, token: int, stops: bool, last: bool) -> tuple[str, bool]:
        """The text that one more token makes certain, and whether the text stops with it.

        `stops`: it is a stop token, which has no text. `last`: no token follows it.
        """
        text = "" if stops else self.feed(token)
        if stops or last:
            text += self.finish()
        return text, stops or self.stopped

    def finish(self) -> str:
        """What was still held back: the end of the text."""
        if self.stopped:
            return ""
        text = self._release(self._new(self.ids[self.window :]))
        self.read = len(self.ids)
        text, self.held = text + self.held, ""
        return text

    def _complete(self) -> str:
        """New text up to the last complete character."""
        ids = self.ids[self.window :]
        if self.tokenizer.decode(ids).endswith(BROKEN):
            return ""
        text = self._new(ids)
        # The next window needs a token before it that is seen: at a text's beginning a space may be left out.
        if self.tokenizer.decode(self.ids[self.read :]):
            self.window = self.read
        self.read = len(self.ids)
        return text

    def _new(self, ids: list[int]) -> str:
        """What these ids add to those of them that were read before."""
        known = self.tokenizer.decode(ids[: self.read - self.window])
        text = self.tokenizer.decode(ids)
        # A run of bytes that broke later may decode differently as a whole; what was given out stays.
        return text[len(known) :] if text.startswith(known) else self.tokenizer.decode(self.ids[self.read :])

    def _release(self, text: str) -> str:
        if self.stopped:
            return ""
        self.held += text
        ends = [(at + len(stop), at) for stop in self.stop if (at := self.held.find(stop)) >= 0]
        if ends:
            # The string that is complete first counts, however the text was cut into tokens.
            text, self.held, self.stopped = self.held[: min(ends)[1]], "", True
            return text
        unsure = max((_overlap(self.held, stop) for stop in self.stop), default=0)
        cut = len(self.held) - unsure
        text, self.held = self.held[:cut], self.held[cut:]
        return text


def _overlap(text: str, stop: str) -> int:
    """How many of the text's last characters may be the beginning of the stop string."""
    longest = min(len(text), len(stop) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(stop[:n])), 0)
