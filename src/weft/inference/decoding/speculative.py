"""Speculative decoding: a cheap draft proposes several tokens, the model verifies all of them in one call.

A proposal x drawn from q is accepted with probability min(1, p(x) / q(x)); the first one rejected is drawn again from
max(0, p - q), normalized. The text has the model's own distribution exactly (Leviathan et al. 2023); greedy text is
the very same. Drafts come from the text itself (prompt look-up, Saxena 2023) or from a smaller model.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn

from weft.foundation.errors import WeftError
from weft.foundation.seeds import derive
from weft.inference.decoding.conditioning import condition, declared, device_of, eval_mode
from weft.inference.decoding.generated import FinishReason, GeneratedText, GeneratedToken, TokenProbabilities
from weft.inference.decoding.request import GenerationRequest
from weft.inference.decoding.sampling import (
    Sampling,
    UniformStreams,
    choice_probabilities,
    distribution,
    draw,
    top_probabilities,
)
from weft.inference.decoding.sessions import RewindableSession
from weft.models.output import Memory
from weft.parts.state import RING_SLACK


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


def stream_speculative(
    model: nn.Module, request: GenerationRequest, session: RewindableSession | None = None, draft: Draft | None = None
) -> Iterator[GeneratedToken]:
    """The tokens of `speculate` for one text, as soon as they are verified.

    `session`: one of this model that goes on from what it read before; a chat's next turn.
    """
    request.context_limit(declared(model).length, slides=False)
    if len(request.prompts) != 1 or request.samples != 1:
        raise WeftError(
            f"{len(request.prompts)} prompts with {request.samples} samples each: stream one text, or use speculate"
        )
    draft, seed = draft or PromptLookup(), request.text_seeds()[0]
    with eval_mode(model):
        session = session or _session(model, request)
        draft.begin(request.sampling, derive(seed, "draft"))
        yield from Verifier(session, draft, request, seed).steps(session.begin(request.prompts))


def _session(model: nn.Module, request: GenerationRequest) -> RewindableSession:
    return RewindableSession(condition(model, 1, request.source, request.images, request.prefill.side))


def _continue_prompt(
    model: nn.Module, request: GenerationRequest, draft: Draft, seeds: Sequence[int]
) -> list[SpeculativeText]:
    """All samples of one prompt, which is read once."""
    session = _session(model, request)
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
        self.texts = None if request.detokenizer is None else request.detokenizer.stream(request.prompts[0])
        self.proposed = self.accepted = 0

    def run(self, logits: Tensor) -> SpeculativeText:
        """The whole text, from the logits [1, C] after the prompt."""
        steps = list(self.steps(logits))
        found = SpeculativeText.of(steps, self.request.stop)
        text = None if self.texts is None else "".join(step.text for step in steps)
        return replace(found, text=text, calls=self.session.calls, proposed=self.proposed, accepted=self.accepted)

    def steps(self, logits: Tensor) -> Iterator[GeneratedToken]:
        """From the logits [1, C] after the prompt: rounds of verifying and proposing until the text ends."""
        text, count, max_tokens = list(self.request.prompts[0]), 0, self.request.max_tokens
        proposal = Proposal([])
        while True:
            for step in self._verified(logits, proposal, text, max_tokens - count):
                count += 1
                text.append(step.token)
                yield step
                if step.finish_reason is not None:
                    return
            self.session.rewind_to(text)
            self.session.commit()
            left = max_tokens - count
            proposal = self.draft.propose(text, left - 1) if left > 1 else Proposal([])
            logits = self.session.read(text[self.session.length :] + proposal.tokens, len(proposal.tokens) + 1)

    @torch.inference_mode()
    def _verified(self, logits: Tensor, proposal: Proposal, text: list[int], left: int) -> list[GeneratedToken]:
        """The tokens of one round, up to the end of the text; `left`: how many it may still have."""
        rows = [_seen(text + proposal.tokens[:n], logits, self.sampling) for n in range(len(logits))]
        marked = [row for row in rows if row is not None]
        seen = torch.stack(marked) if marked else None
        tokens = self._verify(distribution(logits, self.sampling, seen), proposal)
        log_probabilities, choices = _log_probabilities(logits, tokens), self._choices(logits, tokens, seen)
        found: list[GeneratedToken] = []
        for token, log_probability, choice in zip(tokens, log_probabilities, choices, strict=True):
            found.append(self._step(token, log_probability, len(found) + 1 == left, choice))
            if found[-1].finish_reason is not None:
                break
        return found

    def _verify(self, p: Tensor, proposal: Proposal) -> list[int]:
        """The proposed tokens that are accepted by p [n + 1, C], and one token of the model's own."""
        self.proposed += len(proposal.tokens)
        for n, token in enumerate(proposal.tokens):
            q = _point_mass(token, p[n]) if proposal.probabilities is None else proposal.probabilities[n]
            if bool(self.uniform.next() * q[token] >= p[n, token]):
                return [*proposal.tokens[:n], self._draw((p[n] - q).clamp(min=0))]
            self.accepted += 1
        return [*proposal.tokens, self._draw(p[-1])]

    def _draw(self, p: Tensor) -> int:
        return int(draw(p[None], self.uniform.next()))

    def _choices(self, logits: Tensor, tokens: list[int], seen: Tensor | None) -> Sequence[TokenProbabilities | None]:
        """What each token was chosen from, if the request asks for it; accepted proposals follow p too."""
        n = len(tokens)
        if not self.request.step_top:
            return [None] * n
        marked = None if seen is None else seen[:n]
        return choice_probabilities(logits[:n], torch.tensor(tokens), self.request.step_top, self.sampling, marked)

    def _step(
        self, token: int, log_probability: float, last: bool, probabilities: TokenProbabilities | None
    ) -> GeneratedToken:
        """Whether a token ends the text, and the text that it makes certain."""
        stop, text = token in self.request.stop, ""
        if self.texts is not None:
            text, stop = self.texts.step(token, stop, last)
        reason: FinishReason | None = "stop" if stop else "length" if last else None
        return GeneratedToken(0, token, log_probability, reason, text, probabilities)


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
