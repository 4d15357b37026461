"""Speculative decoding: a cheap draft proposes several tokens, the model verifies all of them in one call.

Drafts come from the text itself (prompt look-up, Saxena 2023), or from a smaller model. Text by look-up is the very
same as without, greedy or sampled, however far it looks ahead. A smaller model's proposal x, drawn from q, is accepted
with probability min(1, p(x) / q(x)); the first one rejected is drawn again from max(0, p - q), normalized: sampled text
has the model's own distribution exactly (Leviathan et al. 2023), greedy text is the very same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from weft.foundation.errors import WeftError
from weft.foundation.seeds import derive
from weft.inference.decoding.conditioning import condition, declared, eval_mode
from weft.inference.decoding.drafts import Adaptive, Draft, DraftModel, PromptLookup, Proposal, mark_seen
from weft.inference.decoding.generated import FinishReason, GeneratedText, GeneratedToken, TokenProbabilities
from weft.inference.decoding.look_ahead import AcceptanceRates, best_ahead
from weft.inference.decoding.request import GenerationRequest
from weft.inference.decoding.sampling import (
    UniformStreams,
    choice_probabilities,
    choose_tokens,
    distribution,
    draw,
    top_probabilities,
)
from weft.inference.decoding.sessions import PrefillOptions, RewindableSession
from weft.inference.fast.optimized import rows_are_exact
from weft.models.output import Memory

__all__ = [
    "Draft",
    "DraftModel",
    "PromptLookup",
    "Proposal",
    "SpeculativeText",
    "Verifier",
    "speculate",
    "speculates_unasked",
    "stream_speculative",
]


WORTH = 20_000_000  # weights from which looking up is nothing beside a step; nano-gpt would lose a fifth


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


def speculates_unasked(model: nn.Module, request: GenerationRequest) -> bool:
    """Whether prompt look-up is on where nobody asked: where it changes no bit of the text, and mostly pays.

    So for one greedy text whose tokens are computed alike alone and beside others, and which does not slide, by a model
    whose step takes much longer than looking up. Sampled texts repeat less, and can lose a few percent of the time.
    """
    length = declared(model).length
    slides = length is not None and max(map(len, request.prompts)) + request.max_tokens > length
    alone = len(request.prompts) * request.samples == 1
    if not alone or slides or request.sampling.temperature > 0 or request.prefill != PrefillOptions():
        return False
    return sum(weight.numel() for weight in model.parameters()) >= WORTH and rows_are_exact(model)


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
    """The model's side: reads proposals, accepts or rejects them, and looks as far ahead as it paid so far."""

    def __init__(self, session: RewindableSession, draft: Draft, request: GenerationRequest, seed: int) -> None:
        self.session, self.draft, self.request, self.sampling = session, draft, request, request.sampling
        self.uniform = UniformStreams([seed], session.device)
        self.texts = None if request.detokenizer is None else request.detokenizer.stream(request.prompts[0])
        self.rates = AcceptanceRates(draft.priors if isinstance(draft, Adaptive) else (0.5,))
        self.found = Proposal([])
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
            before = len(text)
            for step in self._verified(logits, proposal, text, max_tokens - count):
                count += 1
                text.append(step.token)
                yield step
                if step.finish_reason is not None:
                    return
            self._learn(proposal, text[before:])
            self.session.rewind_to(text)
            self.session.commit()
            left = max_tokens - count
            proposal = self._propose(text, left - 1) if left > 1 else Proposal([])
            logits = self.session.read(text[self.session.length :] + proposal.tokens, len(proposal.tokens) + 1)

    def _propose(self, text: list[int], most: int) -> Proposal:
        """What the draft proposes, as far as it is expected to pay."""
        self.found = self.draft.propose(text, most)
        if not isinstance(self.draft, Adaptive):
            return self.found
        return self.found.first(best_ahead([self.rates.rate(self.found.kind)], [len(self.found.tokens)]))

    def _learn(self, proposal: Proposal, came: list[int]) -> None:
        """Count what was accepted, and compare all that the draft found with the tokens that came."""
        self.proposed, self.accepted = self.proposed + len(proposal.tokens), self.accepted + len(came) - 1
        if self.found.tokens:
            self.rates.learn(self.found.kind, self.found.tokens, came)

    @torch.inference_mode()
    def _verified(self, logits: Tensor, proposal: Proposal, text: list[int], left: int) -> list[GeneratedToken]:
        """The tokens of one round, up to the end of the text; `left`: how many it may still have."""
        found: list[GeneratedToken] = []
        for token, log_probability, choice in self._judged(logits, proposal, text):
            found.append(self._step(token, log_probability, len(found) + 1 == left, choice))
            if found[-1].finish_reason is not None:
                break
        return found

    def _judged(
        self, logits: Tensor, proposal: Proposal, text: list[int]
    ) -> Iterator[tuple[int, float, TokenProbabilities | None]]:
        """The proposed tokens that are accepted by logits [n + 1, C], then one of the model's own.

        Where proposals are certain, each token is chosen as `generate` chooses it, by the same random number, and a
        proposal is accepted if it is that token: which has probability p(x), as the rule for q(x) = 1 demands.
        """
        for n in range(len(logits)):
            row, last = logits[n : n + 1], n == len(proposal.tokens)
            penalized = self.sampling.repetition != 1.0
            mark = mark_seen(text + proposal.tokens[:n], logits, self.sampling) if penalized else None
            seen = None if mark is None else mark[None]
            if last or proposal.probabilities is None:
                numbers = None if self.sampling.greedy else self.uniform.next()
                tokens, log_probabilities = choose_tokens(row, self.sampling, numbers, seen)
            else:
                tokens = self._accept(distribution(row[0], self.sampling, mark), proposal, n)
                log_probabilities = _log_probabilities(row, tokens)
            top = self.request.step_top
            choices = choice_probabilities(row, tokens, top, self.sampling, seen) if top else [None]
            yield int(tokens), float(log_probabilities), choices[0]
            if last or int(tokens) != proposal.tokens[n]:
                return

    def _accept(self, p: Tensor, proposal: Proposal, n: int) -> Tensor:
        """Proposal n, drawn from q, with probability min(1, p / q); else one from max(0, p - q); [1]."""
        assert proposal.probabilities is not None
        token, q = proposal.tokens[n], proposal.probabilities[n]
        if bool(self.uniform.next() * q[token] >= p[token]):
            return draw((p - q).clamp(min=0)[None], self.uniform.next())
        return torch.tensor([token], device=p.device)

    def _step(
        self, token: int, log_probability: float, last: bool, probabilities: TokenProbabilities | None
    ) -> GeneratedToken:
        """Whether a token ends the text, and the text that it makes certain."""
        stop, text = token in self.request.stop, ""
        if self.texts is not None:
            text, stop = self.texts.step(token, stop, last)
        reason: FinishReason | None = "stop" if stop else "length" if last else None
        return GeneratedToken(0, token, log_probability, reason, text, probabilities)


def _log_probabilities(logits: Tensor, tokens: Tensor) -> Tensor:
    """The model's own log-probabilities [B] of tokens [B], from logits [B, C]."""
    return logits.double().log_softmax(-1).gather(1, tokens[:, None])[:, 0]
