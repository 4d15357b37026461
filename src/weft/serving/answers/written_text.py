"""What came of one text so far: its pieces, the log-probabilities of its tokens, why it ended."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from weft.data.tokenizers.token_table import TokenBytes
from weft.inference.decoding.detokenizer import Detokenizer
from weft.inference.decoding.generated import FinishReason, GeneratedToken
from weft.serving.served.served_runs import ServedText

LEAST = -9999.0  # stands for minus infinity, which JSON has not
Top = Sequence[tuple[int, float]]


@dataclass(frozen=True)
class ScoredToken:
    """A token, its log-probability (None for the first of a prompt), the likeliest in its place, where it begins."""

    token: int
    log_probability: float | None
    top: Top
    offset: int


@dataclass
class Piece:
    """What a step made certain: text, tokens that lie in it, and why the text ended if it did."""

    text: str = ""
    scored: list[ScoredToken] = field(default_factory=list)
    finish_reason: FinishReason | None = None

    def add(self, later: Piece) -> None:
        """Go on with what came later."""
        self.text += later.text
        self.scored += later.scored
        self.finish_reason = later.finish_reason

    @property
    def empty(self) -> bool:
        """Whether it says nothing."""
        return not self.text and not self.scored and self.finish_reason is None


class WrittenText:
    """Tokens in, pieces out. A token's score is held back as long as its text: it may belong to a stop string."""

    def __init__(self, run: ServedText, prompt: Sequence[int], stops: Sequence[int], scores: bool, start: int = 0):
        self.stops, self.scores = frozenset(stops), scores
        self.certain = start  # characters given out so far
        self.length = start  # characters of all tokens so far
        self.count = 0
        self.held: list[ScoredToken] = []
        self.stream = Detokenizer(run.tokenizer).stream(prompt) if scores else None

    def take(self, tokens: Sequence[GeneratedToken]) -> Piece:
        """What these tokens make certain."""
        self.count += len(tokens)
        piece = Piece("".join(token.text for token in tokens), finish_reason=tokens[-1].finish_reason)
        self.certain += len(piece.text)
        if self.stream is None:
            return piece
        for token in tokens:
            if token.token in self.stops and token.finish_reason == "stop":
                continue  # it has no text
            self.held.append(ScoredToken(token.token, token.log_probability, token.top, self.length))
            self.length += len(self.stream.feed(token.token))
        if piece.finish_reason is None or self._cut(tokens[-1]):
            known = sum(one.offset < self.certain for one in self.held)
        else:
            known = len(self.held)
        piece.scored, self.held = self.held[:known], self.held[known:]
        return piece

    def _cut(self, last: GeneratedToken) -> bool:
        """Whether a stop string has ended the text, so that the last tokens are not a part of it."""
        return last.finish_reason == "stop" and last.token not in self.stops


def score_prompt(run: ServedText, scores: Sequence[tuple[int, float | None, Top]]) -> tuple[list[ScoredToken], int]:
    """The tokens of a prompt with their scores, and the number of characters that they decode to."""
    stream, offset, found = Detokenizer(run.tokenizer).stream(), 0, []
    for token, log_probability, top in scores:
        found.append(ScoredToken(token, log_probability, top, offset))
        offset += len(stream.feed(token))
    return found, offset + len(stream.finish())


def finite(value: float | None) -> float | None:
    """A log-probability that JSON can write."""
    return None if value is None else value if math.isfinite(value) else LEAST


class TokenNames:
    """Tokens as answers show them: their text, or `bytes:\\xe4` where they are a part of a character."""

    def __init__(self, table: TokenBytes) -> None:
        self.table = table

    def name(self, token: int) -> str:
        data = self.table.of(token)
        try:
            return data.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)

    def bytes(self, token: int) -> list[int]:
        return list(self.table.of(token))


def completion_logprobs(names: TokenNames, scored: Sequence[ScoredToken], top: int) -> dict[str, Any]:
    """The form of /v1/completions: four lists side by side; the chosen token is always among the likeliest."""
    likeliest: list[dict[str, float | None] | None] = []
    for one in scored:
        if one.log_probability is None:
            likeliest.append(None)
            continue
        pairs = {names.name(token): finite(value) for token, value in one.top[:top]}
        likeliest.append({**pairs, names.name(one.token): finite(one.log_probability)})
    return {
        "tokens": [names.name(one.token) for one in scored],
        "token_logprobs": [finite(one.log_probability) for one in scored],
        "top_logprobs": likeliest,
        "text_offset": [one.offset for one in scored],
    }


def chat_logprobs(names: TokenNames, scored: Sequence[ScoredToken], top: int) -> dict[str, Any]:
    """The form of /v1/chat/completions: one entry per token, with its bytes."""

    def entry(token: int, value: float | None) -> dict[str, Any]:
        return {"token": names.name(token), "logprob": finite(value), "bytes": names.bytes(token)}

    content = [
        {
            **entry(one.token, one.log_probability),
            "top_logprobs": [entry(token, value) for token, value in one.top[:top]],
        }
        for one in scored
    ]
    return {"content": content, "refusal": None}
