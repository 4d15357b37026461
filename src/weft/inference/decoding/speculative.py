"""Speculative decoding: a cheap draft proposes several tokens, the model verifies all of them in one call.

Drafts come from the text itself (prompt look-up, Saxena 2023), or from a smaller model. Text by look-up is the very
same as without, greedy or sampled, however far it looks ahead; texts whose tokens are computed alike in any company are
verified together, each with as many proposals as pay. A smaller model's proposal x, drawn from q, is accepted with
probability min(1, p(x) / q(x)); the first one rejected is drawn again from max(0, p - q), normalized: sampled text has
the model's own distribution exactly (Leviathan et al. 2023), greedy text is the very same.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from weft.foundation.errors import WeftError
from weft.foundation.seeds import derive
from weft.inference.decoding.conditioning import ConditionedModel, condition, declared, device_of, eval_mode
from weft.inference.decoding.drafts import Adaptive, Draft, DraftModel, PromptLookup, Proposal
from weft.inference.decoding.generated import FinishReason, GeneratedText, GeneratedToken
from weft.inference.decoding.request import GenerationRequest
from weft.inference.decoding.sampling import Choice, TokenSampler, top_probabilities
from weft.inference.decoding.sessions import PrefillOptions, RewindableBatch, RewindableSession, VerifyingSession
from weft.inference.decoding.verifier import StepRoom, Verifier, judge, plan_ahead, step_room
from weft.inference.fast.optimized import exact_rows
from weft.models.output import Memory
from weft.parts.quantized import BlockMatrix

__all__ = [
    "Draft",
    "DraftModel",
    "PromptLookup",
    "Proposal",
    "SpeculativeText",
    "speculate",
    "speculates_unasked",
    "stream_speculative",
]


UNASKED = 1  # texts at once for which look-up is on unasked; for more, that it never costs has still to be measured
WORTH = 20_000_000  # weights from which looking up is nothing beside a step; nano-gpt would lose a fifth


@dataclass(frozen=True)
class SpeculativeText(GeneratedText):
    """A text and its cost: calls of the model (the prompt's included), tokens proposed, proposals accepted.

    Texts that were verified together share their calls.
    """

    calls: int = 0
    proposed: int = 0
    accepted: int = 0


def speculate(model: nn.Module, request: GenerationRequest, draft: Draft | None = None) -> list[SpeculativeText]:
    """The texts of `generate` by a draft, prompt look-up if none is given."""
    draft = draft or PromptLookup()
    _expect_fit(model, request, draft)
    with eval_mode(model):
        return [text for part in _parts(model, request, draft) for text in part.run()]


def stream_speculative(
    model: nn.Module, request: GenerationRequest, session: RewindableSession | None = None, draft: Draft | None = None
) -> Iterator[GeneratedToken]:
    """The tokens of `speculate`, as soon as they are verified.

    `session`: one of this model that goes on from what it read before, for a single text; a chat's next turn.
    """
    draft = draft or PromptLookup()
    _expect_fit(model, request, draft)
    texts = len(request.prompts) * request.samples
    if session is not None and texts != 1:
        raise WeftError(f"{texts} texts by a session that reads one: leave `session` out")
    with eval_mode(model):
        if session is None:
            parts = _parts(model, request, draft)
        else:
            rows, room = _rows(model, request, [draft], request.text_seeds(), 0), step_room(model, exact_rows(model))
            parts = iter([SpeculativePart(session, session.begin(request.prompts), rows, request, room)])
        for part in parts:
            yield from part


def speculates_unasked(model: nn.Module, request: GenerationRequest) -> bool:
    """Whether prompt look-up is on where nobody asked: where it changes no bit of the text, and mostly pays.

    So for one greedy text whose tokens are computed alike alone and beside others, and which does not slide, by a model
    whose step takes much longer than looking up. Sampled texts repeat less, and can lose a few percent of the time.
    """
    length = declared(model).length
    slides = length is not None and max(map(len, request.prompts)) + request.max_tokens > length
    if slides or not request.sampling.greedy or request.prefill != PrefillOptions():
        return False
    texts = len(request.prompts) * request.samples
    return texts <= UNASKED and is_worth_looking_up(model) and texts <= exact_rows(model)


def is_worth_looking_up(model: nn.Module) -> bool:
    """Whether looking up takes no time to speak of beside a step of this model."""
    blocks = sum(part.rows * part.columns for part in model.modules() if isinstance(part, BlockMatrix))
    return blocks + sum(weight.numel() for weight in model.parameters()) >= WORTH


def _expect_fit(model: nn.Module, request: GenerationRequest, draft: Draft) -> None:
    declaration = declared(model)
    request.context_limit(declaration.length, slides=False)
    vocabulary = getattr(draft, "vocabulary", None)
    if vocabulary is not None and vocabulary != declaration.vocabulary:
        raise WeftError(
            f"a draft of {vocabulary} tokens for a model of {declaration.vocabulary}: use the same tokenizer"
        )


def _parts(model: nn.Module, request: GenerationRequest, draft: Draft) -> Iterator[SpeculativePart]:
    """The texts that are verified together, their prompts read; one at a time where rows are not exact.

    More texts than have room leave half of it for proposals.
    """
    prompts, samples = len(request.prompts), request.samples
    exact = exact_rows(model) if request.prefill.native else 0
    room = step_room(model, exact)
    count = prompts if prompts * samples <= exact else exact // 2 // samples
    if not count or not request.prefill.cached or not isinstance(draft, Adaptive):
        yield from _parts_one_by_one(model, request, draft, room)
        return
    seeds = request.text_seeds()
    for first in range(0, prompts, count):
        own = _some(request, first, first + count)
        session = RewindableBatch(_condition(model, own), own.prefill)
        logits = session.begin(own.prompts)
        if samples > 1:
            order = torch.arange(len(logits), device=logits.device).repeat_interleave(samples)
            session.reorder(order)
            logits = logits[order]
        drafts = [copy.copy(draft) for _ in range(len(logits))]
        rows = _rows(model, own, drafts, seeds[first * samples :], first * samples)
        yield SpeculativePart(session, logits, rows, own, room)


def _parts_one_by_one(
    model: nn.Module, request: GenerationRequest, draft: Draft, room: StepRoom
) -> Iterator[SpeculativePart]:
    """One text after the other; a prompt is read once for all of its samples."""
    samples, seeds = request.samples, request.text_seeds()
    for prompt in range(len(request.prompts)):
        own = _some(request, prompt, prompt + 1)
        session = RewindableSession(_condition(model, own))
        logits = session.begin(own.prompts)
        for n in range(samples):
            first = prompt * samples + n
            fork = session if n == samples - 1 else session.fork()
            rows = _rows(model, replace(own, samples=1), [draft], seeds[first:], first)
            yield SpeculativePart(fork, logits, rows, own, room)


def _condition(model: nn.Module, request: GenerationRequest) -> ConditionedModel:
    return condition(model, len(request.prompts), request.source, request.images, request.prefill.side)


def _some(request: GenerationRequest, first: int, last: int) -> GenerationRequest:
    """The request of prompts first, ..., last - 1."""
    source, images = request.source, request.images
    if isinstance(source, Memory):
        source = source.reorder(torch.arange(first, min(last, len(request.prompts)), device=source.hidden.device))
    elif source is not None:
        source = source[first:last]
    images = None if images is None else images[first:last]
    return replace(request, prompts=request.prompts[first:last], seeds=0, source=source, images=images)


def _rows(
    model: nn.Module, request: GenerationRequest, drafts: Sequence[Draft], seeds: Sequence[int], first: int
) -> list[SpeculativeRow]:
    """The texts of a request, the first one of them number `first` of all."""
    texts = [prompt for prompt in request.prompts for _ in range(request.samples)]
    vocabulary, device = declared(model).vocabulary or 0, device_of(model)
    rows = []
    for n, (text, draft, seed) in enumerate(zip(texts, drafts, seeds, strict=False)):
        sampler = TokenSampler(request.sampling, seed, text, vocabulary, device)
        draft.begin(request.sampling, derive(seed, "draft"))
        rows.append(SpeculativeRow(first + n, Verifier(draft, text), sampler, request))
    return rows


class SpeculativeRow:
    """One text as row `number` of all: how its tokens are proposed, chosen, detokenized and counted."""

    def __init__(self, number: int, verifier: Verifier, sampler: TokenSampler, request: GenerationRequest) -> None:
        self.number, self.verifier, self.sampler, self.request = number, verifier, sampler, request
        self.stop, self.left = frozenset(request.stop), request.max_tokens
        detokenizer = request.detokenizer
        self.texts = None if detokenizer is None else detokenizer.stream(verifier.text)

    def steps(self, choices: Sequence[Choice]) -> list[GeneratedToken]:
        """The tokens that came, up to the end of the text, with the text that each makes certain."""
        found: list[GeneratedToken] = []
        for token, log_probability, probabilities in choices:
            self.left -= 1
            stop, text, last = token in self.stop, "", self.left == 0
            if self.texts is not None:
                text, stop = self.texts.step(token, stop, last)
            reason: FinishReason | None = "stop" if stop else "length" if last else None
            found.append(GeneratedToken(self.number, token, log_probability, reason, text, probabilities))
            if reason is not None:
                return found
        self.verifier.take([choice.token for choice in choices])
        return found

    def gather(self, steps: Sequence[GeneratedToken], calls: int) -> SpeculativeText:
        """All tokens of the row as one text."""
        text = None if self.texts is None else "".join(step.text for step in steps)
        proposed, accepted = self.verifier.proposed, self.verifier.accepted
        return SpeculativeText.of(steps, self.stop, text=text, calls=calls, proposed=proposed, accepted=accepted)


class SpeculativePart:
    """Texts that are verified together, from the logits [B, C] after their prompts; iterating gives each token once."""

    def __init__(
        self,
        session: VerifyingSession,
        logits: Tensor,
        rows: Sequence[SpeculativeRow],
        request: GenerationRequest,
        room: StepRoom,
    ) -> None:
        self.session, self.logits, self.rows, self.request, self.room = session, logits, rows, request, room

    def __iter__(self) -> Iterator[GeneratedToken]:
        """Rounds of judging and proposing until all texts have ended."""
        rows, logits = list(self.rows), self.logits
        while True:
            proposals = [row.verifier.proposal for row in rows]
            came = judge(logits, [row.sampler for row in rows], proposals, self.request.step_top)
            going = []
            for n, (row, choices) in enumerate(zip(rows, came, strict=True)):
                steps = row.steps(choices)
                yield from steps
                if steps[-1].finish_reason is None:
                    going.append(n)
            if not going:
                return
            if len(going) < len(rows):
                self.session.reorder(torch.tensor(going, device=logits.device))
                rows = [rows[n] for n in going]
            verifiers = [row.verifier for row in rows]
            plan_ahead(verifiers, [row.left - 1 for row in rows], self.room)
            texts, asked = [one.text for one in verifiers], [one.proposal.tokens for one in verifiers]
            logits = self.session.verify(texts, asked)

    def run(self) -> list[SpeculativeText]:
        """The whole texts."""
        top, first = self.request.top, self.rows[0].number
        likeliest = [top_probabilities(row, top) if top else None for row in self.logits]
        steps: list[list[GeneratedToken]] = [[] for _ in self.rows]
        for step in self:
            steps[step.row - first].append(step)
        return [
            replace(row.gather(own, self.session.calls), first_probabilities=shares)
            for row, own, shares in zip(self.rows, steps, likeliest, strict=True)
        ]
