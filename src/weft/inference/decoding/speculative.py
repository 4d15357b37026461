"""Speculative decoding: a cheap draft proposes several tokens, the model verifies all of them in one call.

A proposal x drawn from q is accepted with probability min(1, p(x) / q(x)); the first one rejected is drawn again from
max(0, p - q), normalized. The text has the model's own distribution exactly (Leviathan et al. 2023); greedy text is
the very same. Drafts come from the text itself (prompt look-up, Saxena 2023) or from a smaller model.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn

from weft.foundation.errors import WeftError
from weft.foundation.seeds import derive
from weft.inference.decoding.conditioning import ConditionedModel, condition, declared, device_of, eval_mode
from weft.inference.decoding.generated import FinishReason, GeneratedText, GeneratedToken
from weft.inference.decoding.request import GenerationRequest
from weft.inference.decoding.sampling import Sampling, UniformStreams, distribution, draw, top_probabilities
from weft.models.output import Memory
from weft.parts.state import RING_SLACK, State


class Proposal(NamedTuple):
    """Tokens that may come next, and the distributions [n, C] they were drawn from; None: they are deterministic."""

    tokens: list[int]
    probabilities: Tensor | None = None


class Draft(Protocol):
    """Proposes how a text goes on."""

    def begin(self, sampling: Sampling, seed: int) -> None:
        """Called before each new text."""
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
        pass

    def propose(self, text: list[int], most: int) -> Proposal:
        """The tokens after the match that is nearest to the end; where the text ends, it is taken to repeat."""
        for size in range(min(self.ngram, len(text) - 1), 0, -1):
            tail = text[-size:]
            for at in range(len(text) - size - 1, -1, -1):
                if text[at + size - 1] == tail[-1] and text[at : at + size] == tail:
                    return Proposal(_repeat(text[at + size :], min(self.ahead, most)))
        return Proposal([])


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
                p = distribution(logits[-1], self.sampling, _seen(text + tokens, logits, self.sampling))
                probabilities.append(p)
                tokens.append(int(draw(p[None], self.uniform.next())))
                if n + 1 < count:
                    logits = self.session.read(tokens[-1:])
        return Proposal(tokens, torch.stack(probabilities))


class RewindableSession:
    """Reads one text and can take back what it read since the last commit.

    Keys and values are simply forgotten; recurrences and convolutions go on from a copy and read again.
    """

    def __init__(self, conditioned: ConditionedModel) -> None:
        self.conditioned, self.device = conditioned, device_of(conditioned.model)
        self.state: State = conditioned.model.make_state(1)
        self.text: list[int] = []
        self.calls = 0
        self.committed: tuple[State, int] | None = None

    @property
    def length(self) -> int:
        """Number of tokens read."""
        return len(self.text)

    @torch.inference_mode()
    def read(self, tokens: Sequence[int], rows: int = 1) -> Tensor:
        """Logits [rows, C] of what follows each of the last `rows` tokens."""
        out = self.conditioned.call(torch.tensor([list(tokens)], device=self.device), None, self.state, not self.text)
        self.text += tokens
        self.calls += 1
        return out.head(out.hidden[0, -rows:])

    def commit(self) -> None:
        """Nothing read so far will be taken back."""
        if not self.text or not self.state.can_rollback:
            self.committed = (self.state.copy(), self.length)

    def rewind_to(self, text: list[int]) -> None:
        """Take back whatever is not a beginning of `text`; its last token stays to be read."""
        same = next((n for n, (a, b) in enumerate(zip(self.text, text, strict=False)) if a != b), len(self.text))
        length = min(same, len(text) - 1)
        if length == self.length:
            return
        if self.state.can_rollback:
            self.state.rollback(self.length - length)
            self.text = self.text[:length]
            return
        assert self.committed is not None
        state, kept = self.committed
        again = self.text[kept:length]
        self.state, self.text = state.copy(), self.text[:kept]
        if again:
            self.read(again)

    def fork(self) -> RewindableSession:
        """Another session that goes on from the same tokens."""
        twin = copy.copy(self)
        twin.state, twin.text = self.state.copy(), list(self.text)
        return twin


@dataclass(frozen=True)
class SpeculativeText(GeneratedText):
    """A text and its cost: calls of the model (the prompt's included), tokens proposed, proposals accepted."""

    calls: int = 0
    proposed: int = 0
    accepted: int = 0


def speculate(model: nn.Module, request: GenerationRequest, draft: Draft | None = None) -> list[SpeculativeText]:
    """The texts of `generate` by a draft (prompt look-up if none is given), one after the other."""
    declaration = declared(model)
    request.context_limit(declaration.length, slides=False)
    draft = draft or PromptLookup()
    vocabulary = getattr(draft, "vocabulary", None)
    if vocabulary is not None and vocabulary != declaration.vocabulary:
        raise WeftError(
            f"a draft of {vocabulary} tokens for a model of {declaration.vocabulary}: use the same tokenizer"
        )
    seeds = request.text_seeds()
    found: list[SpeculativeText] = []
    with eval_mode(model), torch.inference_mode():
        for row in range(len(request.prompts)):
            own = seeds[row * request.samples : (row + 1) * request.samples]
            found += _continue_prompt(model, _alone(request, row), draft, own)
    return found


def _alone(request: GenerationRequest, row: int) -> GenerationRequest:
    """The request of one prompt."""
    source, images = request.source, request.images
    if isinstance(source, Memory):
        source = source.reorder(torch.tensor([row], device=source.hidden.device))
    elif source is not None:
        source = source[row : row + 1]
    images = None if images is None else images[row : row + 1]
    return replace(request, prompts=request.prompts[row : row + 1], seeds=0, source=source, images=images)


def _continue_prompt(
    model: nn.Module, request: GenerationRequest, draft: Draft, seeds: Sequence[int]
) -> list[SpeculativeText]:
    """All samples of one prompt, which is read once."""
    session = RewindableSession(condition(model, 1, request.source, request.images, request.prefill.side))
    # The prompt is read without a proposal, so that nothing of it is ever read twice.
    logits = session.read(request.prompts[0])
    first = top_probabilities(logits[-1], request.top) if request.top else None
    found = []
    for n, seed in enumerate(seeds):
        draft.begin(request.sampling, derive(seed, "draft"))
        own = session if n == len(seeds) - 1 else session.fork()
        text = Verifier(own, draft, request, seed).run(logits)
        found.append(replace(text, first_probabilities=first))
    return found


class Verifier:
    """The model's side: reads proposals, accepts or rejects them."""

    def __init__(self, session: RewindableSession, draft: Draft, request: GenerationRequest, seed: int) -> None:
        self.session, self.draft, self.request, self.sampling = session, draft, request, request.sampling
        self.uniform = UniformStreams([seed], session.device)
        self.proposed = self.accepted = 0

    def run(self, logits: Tensor) -> SpeculativeText:
        """From the logits [1, C] after the prompt: rounds of verifying and proposing until a text ends."""
        text, stop, max_tokens = list(self.request.prompts[0]), frozenset(self.request.stop), self.request.max_tokens
        steps: list[GeneratedToken] = []
        proposal = Proposal([])
        while True:
            tokens = self._verify(logits, proposal, text)
            for token, log_probability in zip(tokens, _log_probabilities(logits, tokens), strict=True):
                last = len(steps) + 1 == max_tokens
                reason: FinishReason | None = "stop" if token in stop else "length" if last else None
                steps.append(GeneratedToken(0, token, log_probability, reason))
                text.append(token)
                if reason is not None:
                    return self._text(steps)
            self.session.rewind_to(text)
            self.session.commit()
            left = max_tokens - len(steps)
            proposal = self.draft.propose(text, left - 1) if left > 1 else Proposal([])
            logits = self.session.read(text[self.session.length :] + proposal.tokens, len(proposal.tokens) + 1)

    def _verify(self, logits: Tensor, proposal: Proposal, text: list[int]) -> list[int]:
        """The proposed tokens that are accepted, and one token of the model's own."""
        self.proposed += len(proposal.tokens)
        seen = [_seen(text + proposal.tokens[:n], logits, self.sampling) for n in range(len(logits))]
        rows = [one for one in seen if one is not None]
        p = distribution(logits, self.sampling, torch.stack(rows) if rows else None)
        for n, token in enumerate(proposal.tokens):
            q = _point_mass(token, p[n]) if proposal.probabilities is None else proposal.probabilities[n]
            if bool(self.uniform.next() * q[token] >= p[n, token]):
                return [*proposal.tokens[:n], self._draw((p[n] - q).clamp(min=0))]
            self.accepted += 1
        return [*proposal.tokens, self._draw(p[-1])]

    def _draw(self, p: Tensor) -> int:
        return int(draw(p[None], self.uniform.next()))

    def _text(self, steps: list[GeneratedToken]) -> SpeculativeText:
        found = SpeculativeText.of(steps, self.request.stop)
        detokenizer = self.request.detokenizer
        text = None if detokenizer is None else detokenizer.decode(found.tokens, self.request.prompts[0])
        return replace(found, text=text, calls=self.session.calls, proposed=self.proposed, accepted=self.accepted)


def _point_mass(token: int, like: Tensor) -> Tensor:
    """All probability on one token."""
    return torch.zeros_like(like).index_fill_(0, torch.tensor(token, device=like.device), 1.0)


def _log_probabilities(logits: Tensor, tokens: list[int]) -> list[float]:
    """The model's own log-probabilities of these tokens, one per row."""
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
        raise WeftError(f"proposing {ahead} tokens ahead: use 1 to {RING_SLACK - 1}")
    return ahead
