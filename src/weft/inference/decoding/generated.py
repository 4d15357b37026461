"""What generation gives: tokens as they are chosen, and finished texts with their probabilities and alignment."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Self

import torch
from torch import Tensor

FinishReason = Literal["stop", "length"]
TokenProbabilities = list[tuple[int, float]]
TopTokens = tuple[tuple[int, float], ...]


class GeneratedToken(NamedTuple):
    """One token of one row. A stop token is given too; `finish_reason` is set on the last token of a text.

    `log_probability`: that of the model itself, before temperature and cuts. `text`: the text that this token makes
    certain, where the request has a detokenizer. `probabilities`: the likeliest tokens of the distribution that it was
    chosen from, if the request asks for them (`step_top`). `top`: the model's own likeliest tokens with their
    log-probabilities, best first, if a request of the engine asks for them.
    """

    row: int
    token: int
    log_probability: float
    finish_reason: FinishReason | None = None
    text: str = ""
    probabilities: TokenProbabilities | None = None
    top: TopTokens = ()


class PromptScore(NamedTuple):
    """A token of a prompt and the log-probability that the model gives it, None for the first; `top` as above."""

    token: int
    log_probability: float | None
    top: TopTokens = ()


class TokenChoice(NamedTuple):
    """A token and the likeliest tokens of the distribution it was chosen from, best first, itself always among them."""

    token: int
    probabilities: TokenProbabilities


@dataclass(frozen=True)
class GeneratedText:
    """The continuation of a prompt without its stop token; `text` ends before a stop string.

    `log_probabilities`: those that the model itself gives each token. `score`: their sum, the stop token's included;
    beam search divides it by the length penalty. `alignment` [T, S]: where each token looked in the source, if the
    model says so. `first_probabilities`: the likeliest first tokens, best first, if the request asks for them (`top`).
    `choices`: the same of every step, a stop token's included, if the request asks for them (`step_top`).
    `stop_log_probability`: that of the stop token, if there was one.
    """

    tokens: list[int]
    log_probabilities: list[float]
    finish_reason: FinishReason
    score: float
    alignment: Tensor | None = None
    text: str | None = None
    first_probabilities: TokenProbabilities | None = None
    choices: list[TokenChoice] | None = None
    stop_log_probability: float | None = None

    @property
    def confidence(self) -> float:
        """exp of the mean log-probability per token, the stop token's included: from 0 to 1, whatever the length."""
        ends = [] if self.stop_log_probability is None else [self.stop_log_probability]
        every = [*self.log_probabilities, *ends]
        return math.exp(sum(every) / max(1, len(every)))

    @classmethod
    def of(
        cls, steps: Sequence[GeneratedToken], stop: Collection[int], alignments: Sequence[Tensor] = (), **more: Any
    ) -> Self:
        """The text of all tokens of one row; `alignments` [S] of each of them, `more` fields as they are."""
        reason = steps[-1].finish_reason
        assert reason is not None
        shown = steps[:-1] if steps[-1].token in stop else steps
        return cls(
            [step.token for step in shown],
            [step.log_probability for step in shown],
            reason,
            sum(step.log_probability for step in steps),
            torch.stack(list(alignments))[: len(shown)] if alignments else None,
            choices=_choices(steps),
            stop_log_probability=steps[-1].log_probability if len(shown) < len(steps) else None,
            **more,
        )


def _choices(steps: Sequence[GeneratedToken]) -> list[TokenChoice] | None:
    """What each token was chosen from, if every step says it."""
    found = [TokenChoice(step.token, step.probabilities) for step in steps if step.probabilities is not None]
    return found if len(found) == len(steps) else None
