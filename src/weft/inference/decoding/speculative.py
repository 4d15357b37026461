"""Speculative decoding: a cheap draft proposes several tokens, the model judges all of them in one call.

A proposal x drawn from q is kept with probability min(1, p(x) / q(x)); the first one refused is drawn again from
max(0, p - q), normed. What is written has the model's own distribution exactly (Leviathan et al. 2023); greedy text
is the very same. Drafts come from the text itself (prompt look-up, Saxena 2023) or from a smaller model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn

from weft.foundation.errors import WeftError
from weft.foundation.seeds import derive
from weft.inference.decoding.conditioning import (
    ConditionedModel,
    SourceInput,
    condition,
    declared,
    device_of,
    eval_mode,
)
from weft.inference.decoding.generate import FinishReason, GeneratedText, context_limit
from weft.inference.decoding.sampling import GREEDY, Sampling, UniformStreams, distribution, draw
from weft.parts.state import RING_SLACK, State


class Proposal(NamedTuple):
    """Tokens that may come next, and the distributions [n, C] they were drawn from; None where they are sure."""

    tokens: list[int]
    chances: Tensor | None = None


class Draft(Protocol):
    """Guesses how a text goes on."""

    def begin(self, sampling: Sampling, seed: int) -> None:
        """Before a new text."""
        ...

    def propose(self, text: list[int], most: int) -> Proposal:
        """At most `most` tokens to follow `text`."""
        ...


class PromptLookup:
    """What followed the last time that the text's last tokens occurred: the longest match, up to `ngram` tokens."""

    def __init__(self, ahead: int = 8, ngram: int = 3) -> None:
        if ngram < 1:
            raise WeftError(f"n-grams of {ngram} tokens match nothing: use at least 1")
        self.ahead, self.ngram = expect_ahead(ahead), ngram

    def begin(self, sampling: Sampling, seed: int) -> None:
        """Nothing is kept between texts."""

    def propose(self, text: list[int], most: int) -> Proposal:
        """The tokens after the match that is nearest to the end; where the text ends, it is taken to go round."""
        for size in range(min(self.ngram, len(text) - 1), 0, -1):
            tail = text[-size:]
            for at in range(len(text) - size - 1, -1, -1):
                if text[at + size - 1] == tail[-1] and text[at : at + size] == tail:
                    return Proposal(_repeat(text[at + size :], min(self.ahead, most)))
        return Proposal([])


def _repeat(period: list[int], length: int) -> list[int]:
    """The first `length` tokens of a text that goes round and round."""
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
        """A new reader, with random numbers of its own."""
        self.reader = RewindableSession(condition(self.model, 1))
        self.sampling = sampling
        self.draws = UniformStreams([seed], device_of(self.model))

    def propose(self, text: list[int], most: int) -> Proposal:
        """Drawn one after the other; a text longer than the draft was trained for gets no proposal."""
        count = min(self.ahead, most, (self.length or len(text) + most) - len(text) + 1)
        if count < 1:
            return Proposal([])
        with eval_mode(self.model):
            self.reader.back_to(text)
            logits = self.reader.read(text[self.reader.length :])
            self.reader.settle()
            tokens: list[int] = []
            chances: list[Tensor] = []
            for n in range(count):
                p = distribution(logits[-1], self.sampling, _seen(text + tokens, logits, self.sampling))
                chances.append(p)
                tokens.append(int(draw(p[None], self.draws.next())))
                if n + 1 < count:
                    logits = self.reader.read(tokens[-1:])
        return Proposal(tokens, torch.stack(chances))


class RewindableSession:
    """Reads one text and can take back what it read since it last settled.

    Keys and values are simply forgotten; recurrences and convolutions go on from a copy and read again.
    """

    def __init__(self, conditioned: ConditionedModel) -> None:
        self.conditioned, self.device = conditioned, device_of(conditioned.model)
        self.state: State = conditioned.model.make_state(1)
        self.text: list[int] = []
        self.calls = 0
        self.copy: tuple[State, int] | None = None

    @property
    def length(self) -> int:
        """How many tokens were read."""
        return len(self.text)

    @torch.inference_mode()
    def read(self, tokens: list[int], rows: int = 1) -> Tensor:
        """Logits [rows, C] of what follows each of the last `rows` tokens."""
        out = self.conditioned.call(torch.tensor([tokens], device=self.device), None, self.state, not self.text)
        self.text += tokens
        self.calls += 1
        return out.head(out.hidden[0, -rows:])

    def settle(self) -> None:
        """Nothing read so far will be taken back."""
        if not self.text or not self.state.forgets:
            self.copy = (self.state.copy(), self.length)

    def back_to(self, text: list[int]) -> None:
        """Take back whatever is not a beginning of `text`; its last token stays to be read."""
        same = next((n for n, (a, b) in enumerate(zip(self.text, text, strict=False)) if a != b), len(self.text))
        length = min(same, len(text) - 1)
        if length == self.length:
            return
        if self.state.forgets:
            self.state.forget(self.length - length)
            self.text = self.text[:length]
            return
        assert self.copy is not None
        state, kept = self.copy
        again = self.text[kept:length]
        self.state, self.text = state.copy(), self.text[:kept]
        if again:
            self.read(again)


@dataclass(frozen=True)
class SpeculativeText(GeneratedText):
    """What was written, and what it took: calls of the model, proposes made and kept."""

    calls: int = 0
    proposed: int = 0
    accepted: int = 0


def speculate(
    model: nn.Module,
    prompt: Sequence[int],
    draft: Draft | None = None,
    sampling: Sampling = GREEDY,
    *,
    max_tokens: int = 64,
    stop: Sequence[int] = (),
    seed: int = 0,
    source: SourceInput | None = None,
    images: Tensor | None = None,
) -> SpeculativeText:
    """Continue one prompt with a draft (prompt look-up if none is given)."""
    declaration = declared(model)
    if max_tokens < 1 or not prompt:
        raise WeftError("a prompt of at least one token and max_tokens of at least 1 are needed to write")
    context_limit(declaration.length, [prompt], max_tokens, "refuse")
    draft = draft or PromptLookup()
    theirs = getattr(draft, "vocabulary", None)
    if theirs is not None and theirs != declaration.vocabulary:
        raise WeftError(f"a draft of {theirs} tokens for a model of {declaration.vocabulary}: use the same tokenizer")
    with eval_mode(model), torch.inference_mode():
        draft.begin(sampling, derive(seed, "draft"))
        judge = Verifier(RewindableSession(condition(model, 1, source, images)), draft, sampling, seed)
        return judge.run(list(prompt), max_tokens, frozenset(stop))


class Verifier:
    """The model's side: reads proposes, keeps or refuses them."""

    def __init__(self, reader: RewindableSession, draft: Draft, sampling: Sampling, seed: int) -> None:
        self.reader, self.draft, self.sampling = reader, draft, sampling
        self.draws = UniformStreams([seed], reader.device)
        self.proposed = self.accepted = 0

    def run(self, text: list[int], max_tokens: int, stop: frozenset[int]) -> SpeculativeText:
        """Rounds of guessing and judging until a stop token or the last one."""
        written: list[tuple[int, float]] = []
        proposal = Proposal([])  # the prompt alone is read first, so that nothing of it is ever read twice
        while True:
            logits = self.reader.read(text[self.reader.length :] + proposal.tokens, len(proposal.tokens) + 1)
            tokens = self._judge(logits, proposal, text)
            for token, chance in zip(tokens, _chances(logits, tokens), strict=True):
                written.append((token, chance))
                text.append(token)
                if token in stop or len(written) == max_tokens:
                    return self._done(written, "stop" if token in stop else "length")
            self.reader.back_to(text)
            self.reader.settle()
            left = max_tokens - len(written)
            proposal = self.draft.propose(text, left - 1) if left > 1 else Proposal([])

    def _judge(self, logits: Tensor, proposal: Proposal, text: list[int]) -> list[int]:
        """The proposes kept, and one token of the model's own."""
        self.proposed += len(proposal.tokens)
        seen = [_seen(text + proposal.tokens[:n], logits, self.sampling) for n in range(len(logits))]
        rows = [one for one in seen if one is not None]
        p = distribution(logits, self.sampling, torch.stack(rows) if rows else None)
        for n, token in enumerate(proposal.tokens):
            q = _surely(token, p[n]) if proposal.chances is None else proposal.chances[n]
            if bool(self.draws.next() * q[token] >= p[n, token]):
                return [*proposal.tokens[:n], self._draw((p[n] - q).clamp(min=0))]
            self.accepted += 1
        return [*proposal.tokens, self._draw(p[-1])]

    def _draw(self, p: Tensor) -> int:
        return int(draw(p[None], self.draws.next()))

    def _done(self, written: list[tuple[int, float]], finish_reason: FinishReason) -> SpeculativeText:
        shown = written[:-1] if finish_reason == "stop" else written
        return SpeculativeText(
            [token for token, _ in shown],
            [chance for _, chance in shown],
            finish_reason,
            sum(chance for _, chance in written),
            calls=self.reader.calls,
            proposed=self.proposed,
            accepted=self.accepted,
        )


def _surely(token: int, like: Tensor) -> Tensor:
    """All probability on one token."""
    return torch.zeros_like(like).index_fill_(0, torch.tensor(token, device=like.device), 1.0)


def _chances(logits: Tensor, tokens: list[int]) -> list[float]:
    """The model's own log-probabilities of these tokens, one a row."""
    index = torch.tensor(tokens, device=logits.device)[:, None]
    return logits[: len(tokens)].double().log_softmax(-1).gather(1, index)[:, 0].tolist()


def _seen(text: list[int], logits: Tensor, sampling: Sampling) -> Tensor | None:
    if sampling.repetition == 1.0:
        return None
    seen = torch.zeros(logits.shape[-1], dtype=torch.bool, device=logits.device)
    seen[torch.tensor(text, device=logits.device)] = True
    return seen


def expect_ahead(ahead: int) -> int:
    """How many tokens may be proposed at once: as many as every kind of state can take back."""
    if not 1 <= ahead < RING_SLACK:
        raise WeftError(f"guessing {ahead} tokens ahead: use 1 to {RING_SLACK - 1}")
    return ahead
