"""Beam search: keep the K likeliest hypotheses, extend each by every token, keep the K likeliest again.

score = log p(y | x) / lp(|y|),   lp(n) = ((5 + n) / 6)^alpha        (Wu et al. 2016)

Several prompts are searched at once, K rows each. A hypothesis that ends leaves the beam for the pool of finished ones
and its row goes to the next best; a prompt is done when no open hypothesis can still enter the pool.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor, nn

from weft.foundation.errors import WeftError
from weft.inference.decoding.conditioning import MemoryConditioned, condition, declared, device_of, eval_mode
from weft.inference.decoding.generated import FinishReason, GeneratedText, TokenChoice, TokenProbabilities
from weft.inference.decoding.request import GenerationRequest
from weft.inference.decoding.sampling import GREEDY, choice_probabilities, expect_numbers, top_probabilities
from weft.inference.decoding.sessions import DecodingSession, start_session

NEVER = float("-inf")


MOST_WIDTH = 1 << 16


@dataclass(frozen=True)
class Beam:
    """`width` K open hypotheses; `penalty` alpha: 0 favors short texts, more favors long; the `best` are given."""

    width: int = 4
    penalty: float = 0.6
    best: int = 1

    def __post_init__(self) -> None:
        if self.width < 1 or self.best < 1:
            raise WeftError(f"a beam of width {self.width} giving the best {self.best} finds nothing: use at least 1")
        if self.width > MOST_WIDTH:
            raise WeftError(f"a beam of width {self.width}: at most {MOST_WIDTH:,} hypotheses are kept open")
        if self.best > self.width:
            raise WeftError(f"the best {self.best} of a beam of width {self.width}: widen it, or ask for fewer")

    def divisor(self, length: int) -> float:
        """lp(n), by which the log-probability of n tokens is divided."""
        return float(((5 + length) / 6) ** self.penalty)


class BackPointer(NamedTuple):
    """One token of a hypothesis and a pointer to the token before it; `alignment` [S] of this token.

    `probabilities`: the likeliest tokens of the distribution it was chosen from, if the request asks for them.
    """

    before: BackPointer | None
    token: int
    log_probability: float
    alignment: Tensor | None
    probabilities: TokenProbabilities | None = None


class OpenHypothesis(NamedTuple):
    """A hypothesis that goes on: its row among the prompt's K, its log-probability, its last token."""

    row: int
    total: float
    last: BackPointer | None


@dataclass
class PromptSearch:
    """The search of one prompt: open hypotheses, and the pool of finished ones (score, reason, last token), best first.

    `first_probabilities`: those of the first token, where the request asks for them.
    """

    prompt: int
    open: list[OpenHypothesis]
    pool: list[tuple[float, FinishReason, BackPointer]] = field(default_factory=list)
    first_probabilities: TokenProbabilities | None = None

    def finish(self, beam: Beam, last: BackPointer, total: float, length: int, reason: FinishReason) -> None:
        """Into the pool, which keeps the best; of equals the one that came first."""
        self.pool.append((total / beam.divisor(length), reason, last))
        self.pool.sort(key=lambda one: -one[0])
        del self.pool[beam.best :]

    def done(self, beam: Beam, length: int, most: int) -> bool:
        """Whether no open hypothesis can enter the pool: its total only falls, so its best length bounds it."""
        if not self.open:
            return True
        if len(self.pool) < beam.best:
            return False
        total = max(one.total for one in self.open)
        return self.pool[-1][0] >= max(total / beam.divisor(length + 1), total / beam.divisor(most))


def beam_search(model: nn.Module, request: GenerationRequest, beam: Beam = Beam()) -> list[list[GeneratedText]]:
    """The best continuations of each prompt, best first; those cut at `max_tokens` compete with those that stopped."""
    if request.sampling != GREEDY or request.samples != 1:
        raise WeftError("beam search draws nothing: leave sampling and samples out; Beam(best=N) gives several texts")
    request.context_limit(declared(model).length, slides=False)
    with eval_mode(model), torch.inference_mode():
        conditioned = condition(
            model, len(request.prompts), request.source, request.images, request.prefill.side, request.prefill.native
        )
        real = conditioned.memory.token_positions.real if isinstance(conditioned, MemoryConditioned) else None
        found = BeamSearch(start_session(conditioned, request.prefill), request, beam, device_of(model)).run()
    return [[_text(search, n, request, real) for n in range(len(search.pool))] for search in found]


class BeamSearch:
    """The searches of all prompts in step: prompts x K rows; prompts that are done leave."""

    def __init__(self, session: DecodingSession, request: GenerationRequest, beam: Beam, device: torch.device) -> None:
        self.session, self.request, self.beam, self.device = session, request, beam, device
        self.max_tokens, self.stop = request.max_tokens, frozenset(request.stop)

    def run(self) -> list[PromptSearch]:
        """One search per prompt; all prompts are read once, then each gets K rows."""
        searches = [PromptSearch(n, [OpenHypothesis(0, 0.0, None)]) for n in range(len(self.request.prompts))]
        live, width = searches, 1
        logits = self.session.begin(self.request.prompts)
        self.vocabulary = logits.shape[-1]
        if self.request.top:
            for search, row in zip(searches, logits, strict=True):
                search.first_probabilities = top_probabilities(row, self.request.top)
        for length in range(1, self.max_tokens + 1):
            totals, indices = self._candidates(logits, live, width)
            alignment = self.session.alignment
            for n, (search, values, own) in enumerate(zip(live, totals.tolist(), indices.tolist(), strict=True)):
                expect_numbers(values[:1])  # `topk` takes NaN for the largest
                rows = slice(n * width, (n + 1) * width)
                looked = None if alignment is None else alignment[rows]
                self._extend(search, values, own, length, looked, logits[rows])
            alive = [n for n, search in enumerate(live) if not search.done(self.beam, length, self.max_tokens)]
            if length == self.max_tokens or not alive:
                break
            order = [n * width + one.row for n in alive for one in self._filled(live[n])]
            live, width = [live[n] for n in alive], self.beam.width
            self.session.reorder(torch.tensor(order, device=self.device))
            tokens = [one.last.token if one.last else 0 for search in live for one in self._filled(search)]
            logits = self.session.advance(torch.tensor(tokens, device=self.device))
        return searches

    def _filled(self, search: PromptSearch) -> list[OpenHypothesis]:
        """Exactly K rows: the first stands in where fewer are open, and is never extended."""
        return search.open + [search.open[0]._replace(total=NEVER)] * (self.beam.width - len(search.open))

    def _candidates(self, logits: Tensor, live: list[PromptSearch], width: int) -> tuple[Tensor, Tensor]:
        """Totals and indices (row x C + token) of each prompt's best extensions, enough that K of them go on."""
        log_probabilities = logits.double().log_softmax(-1).unflatten(0, (len(live), width))
        before = [[one.total for one in (self._filled(s) if width > 1 else s.open)] for s in live]
        totals = log_probabilities + torch.tensor(before, dtype=torch.float64, device=self.device)[:, :, None]
        wanted = min(self.beam.width * (1 + len(self.stop)), totals[0].numel())
        best = totals.flatten(1).topk(wanted)
        return best.values, best.indices

    def _extend(
        self,
        search: PromptSearch,
        totals: list[float],
        indices: list[int],
        length: int,
        alignment: Tensor | None,
        logits: Tensor,
    ) -> None:
        """Hypotheses of one token more; those among the K best that stop, or reach the full length, are finished.

        `alignment` [K, S] and `logits` [K, C] are those of the prompt's rows.
        """
        before, search.open = search.open, []
        for rank, (total, index) in enumerate(zip(totals, indices, strict=True)):
            if total == NEVER or len(search.open) == self.beam.width:
                break
            row, token = divmod(index, self.vocabulary)
            looked = None if alignment is None else alignment[row]
            probabilities = self._chosen_from(logits[row], token)
            last = BackPointer(before[row].last, token, total - before[row].total, looked, probabilities)
            if token not in self.stop:
                search.open.append(OpenHypothesis(row, total, last))
            elif rank < self.beam.width:
                search.finish(self.beam, last, total, length, "stop")
        if length == self.max_tokens:
            for one in search.open:
                assert one.last is not None
                search.finish(self.beam, one.last, one.total, length, "length")

    def _chosen_from(self, logits: Tensor, token: int) -> TokenProbabilities | None:
        """The model's own distribution, from logits [C], where the request asks for it."""
        if not self.request.step_top:
            return None
        return choice_probabilities(logits[None], torch.tensor([token]), self.request.step_top, GREEDY)[0]


def _text(search: PromptSearch, index: int, request: GenerationRequest, real: Tensor | None = None) -> GeneratedText:
    """The finished hypothesis at `index` of the pool; its alignment is to real source tokens only."""
    score, reason, last = search.pool[index]
    steps = [last]
    while (before := steps[-1].before) is not None:
        steps.append(before)
    steps.reverse()
    shown = steps[:-1] if reason == "stop" else steps
    rows = [step.alignment for step in steps if step.alignment is not None]
    alignment = torch.stack(rows)[: len(shown)] if rows else None
    if alignment is not None and real is not None:
        alignment = alignment[:, real[search.prompt]]
    tokens = [step.token for step in shown]
    detokenizer, prompt = request.detokenizer, request.prompts[search.prompt]
    text = None if detokenizer is None else detokenizer.decode(tokens, prompt)
    log_probabilities = [step.log_probability for step in shown]
    choices = [TokenChoice(step.token, step.probabilities) for step in steps if step.probabilities is not None]
    found = (tokens, log_probabilities, reason, score, alignment, text, search.first_probabilities, choices or None)
    return GeneratedText(*found, stop_log_probability=last.log_probability if reason == "stop" else None)
