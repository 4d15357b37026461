"""Drafts for speculative decoding: how a text may go on, from the text itself or by a smaller model.

Prompt look-up (Saxena 2023) proposes what followed the last time; a draft model samples as the large one does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from weft.foundation.errors import WeftError
from weft.inference.decoding.conditioning import condition, declared, device_of, eval_mode
from weft.inference.decoding.sampling import Sampling, UniformStreams, distribution, draw, expect_numbers
from weft.inference.decoding.sessions import RewindableSession
from weft.parts.state import RING_SLACK

PRIORS = (0.0, 0.1, 0.4, 0.6, 0.75)  # of acceptance, by the number of tokens that matched


class Proposal(NamedTuple):
    """Tokens that may come next, and the distributions [n, C] they were drawn from; None: they are deterministic.

    `kind`: how good they are likely to be, for the estimate of how many are accepted: the number of tokens matched.
    """

    tokens: list[int]
    probabilities: Tensor | None = None
    kind: int = 0

    def first(self, count: int) -> Proposal:
        """The first `count` of these tokens."""
        probabilities = None if self.probabilities is None else self.probabilities[:count]
        return Proposal(self.tokens[:count], probabilities, self.kind)


class Draft(Protocol):
    """Proposes how a text goes on."""

    def begin(self, sampling: Sampling, seed: int) -> None:
        """Called before each new text."""
        ...

    def propose(self, text: list[int], most: int) -> Proposal:
        """At most `most` tokens to follow `text`."""
        ...


@runtime_checkable
class Adaptive(Protocol):
    """A draft whose proposals cost nothing, so that as many are judged as pay: `priors` of acceptance by their kind."""

    priors: Sequence[float]


class PromptLookup:
    """What followed the last time that the text's last tokens occurred: the longest match, up to `ngram` tokens.

    Where each n-gram ended last is kept while a text grows, so a proposal costs the same however long it is.
    """

    def __init__(self, ahead: int = 16, ngram: int = 4) -> None:
        if ngram < 1:
            raise WeftError(f"n-grams of {ngram} tokens match nothing: use at least 1")
        self.ahead, self.ngram, self.priors = expect_ahead(ahead), ngram, PRIORS
        self._forget()

    def begin(self, sampling: Sampling, seed: int) -> None:
        self._forget()

    def _forget(self) -> None:
        self._text: list[int] = []
        self._ends: dict[tuple[int, ...], int] = {}  # n-grams of all sizes: the index of the last token of the latest

    def propose(self, text: list[int], most: int) -> Proposal:
        """The tokens after the match that is nearest to the end; where the text ends, it is taken to repeat."""
        self._note(text)
        for size in range(min(self.ngram, len(text) - 1), 0, -1):
            end = self._ends.get(tuple(text[-size:]))
            if end is not None:
                length = min(self.ahead, most)
                return Proposal(_repeat(text[end + 1 : end + 1 + length], length), kind=size)
        return Proposal([])

    def _note(self, text: list[int]) -> None:
        """Remember the n-grams of this text that end before its last token; forget those of another text."""
        known = len(self._text)
        if known >= len(text) or self._text != text[:known]:
            self._forget()
            known = 0
        for end in range(known, len(text) - 1):
            for size in range(1, min(self.ngram, end + 1) + 1):
                self._ends[tuple(text[end + 1 - size : end + 1])] = end
        self._text += text[known:-1]


def _repeat(period: list[int], length: int) -> list[int]:
    """The first `length` tokens of a periodic text."""
    return (period * (length // len(period) + 1))[:length]


class DraftModel:
    """A smaller decoder of the same vocabulary proposes `ahead` tokens, sampled as the large one is."""

    def __init__(self, model: nn.Module, ahead: int = 4) -> None:
        declaration = declared(model)
        if declaration.seq2seq:
            raise WeftError("a draft model is a decoder: an encoder-decoder would need the source too")
        self.model, self.ahead, self.vocabulary = model, expect_ahead(ahead), declaration.vocabulary
        self.length = declaration.length

    def begin(self, sampling: Sampling, seed: int) -> None:
        """A new session, with random numbers of its own."""
        self.session = RewindableSession(condition(self.model, 1))
        self.sampling = sampling
        self.uniform = UniformStreams([seed], device_of(self.model))

    def propose(self, text: list[int], most: int) -> Proposal:
        """Drawn one after the other; a text longer than the draft was trained for gets no proposal."""
        count = min(self.ahead, most, (self.length or len(text) + most) - len(text) + 1)
        if count < 1:
            return Proposal([])
        with eval_mode(self.model):
            self.session.rewind_to(text)
            logits = self.session.read(text[self.session.length :])
            self.session.commit()
            tokens: list[int] = []
            probabilities: list[Tensor] = []
            for n in range(count):
                p = distribution(logits[-1], self.sampling, mark_seen(text + tokens, logits, self.sampling))
                probabilities.append(p)
                tokens.append(int(draw(p[None], self.uniform.next())))
                expect_numbers([float(p[tokens[-1]])])
                if n + 1 < count:
                    logits = self.session.read(tokens[-1:])
        return Proposal(tokens, torch.stack(probabilities))


def mark_seen(text: list[int], logits: Tensor, sampling: Sampling) -> Tensor | None:
    """True for the tokens of this text, [C], where a repetition penalty needs them."""
    if sampling.repetition == 1.0:
        return None
    seen = torch.zeros(logits.shape[-1], dtype=torch.bool, device=logits.device)
    seen[torch.tensor(text, device=logits.device)] = True
    return seen


def expect_ahead(ahead: int) -> int:
    """How many tokens may be proposed at once: as many as every kind of state can take back."""
    if not 1 <= ahead < RING_SLACK:
        raise WeftError(f"proposing {ahead} tokens ahead: use 1 to {RING_SLACK - 1}")
    return ahead
