"""Verifying: what a draft proposes for a text, how much of it is worth judging, and what the model makes of it.

One `Verifier` per text, alone, in a batch or in the engine; `plan_ahead` shares the rows of a step among them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from weft.inference.decoding.drafts import Adaptive, Draft, Proposal
from weft.inference.decoding.look_ahead import BLOCKS, BY_TORCH, FLOATS, AcceptanceRates, StepCost, best_ahead
from weft.inference.decoding.sampling import (
    Choice,
    TokenSampler,
    choice_probabilities,
    choose_each,
    distribution,
    draw,
    expect_numbers,
    log_probabilities,
)
from weft.parts.quantized import BlockMatrix
from weft.parts.state import RING_SLACK

NONE = Proposal([])


class Verifier:
    """One text: what its draft found, what of it is judged in this step (`proposal`), and how much was accepted."""

    def __init__(self, draft: Draft, text: Sequence[int]) -> None:
        self.draft, self.text = draft, list(text)
        self.adaptive = isinstance(draft, Adaptive)
        self.rates = AcceptanceRates(draft.priors if isinstance(draft, Adaptive) else (0.5,))
        self.found = self.proposal = NONE
        self.proposed = self.accepted = 0

    def look_up(self, most: int) -> None:
        """Ask the draft how the text goes on, by at most `most` tokens."""
        self.found = self.draft.propose(self.text, most) if most > 0 else NONE

    @property
    def rate(self) -> float:
        """How likely each token that was found is to be accepted."""
        return self.rates.rate(self.found.kind) if self.adaptive else 1.0

    def take(self, came: Sequence[int]) -> None:
        """The tokens that came, the accepted ones and one more; all that was found is compared with them."""
        self.text += came
        self.proposed += len(self.proposal.tokens)
        self.accepted += len(came) - 1
        if self.found.tokens:
            self.rates.learn(self.found.kind, self.found.tokens, came)


class StepRoom(NamedTuple):
    """How many tokens one step may compute, and what they cost."""

    rows: int
    cost: StepCost


def step_room(model: nn.Module, exact: int, otherwise: int = RING_SLACK) -> StepRoom:
    """Of a model that computes `exact` rows bit for bit alike; `otherwise`: number of rows of others."""
    if not exact:
        return StepRoom(otherwise, BY_TORCH)
    return StepRoom(exact, BLOCKS if any(isinstance(part, BlockMatrix) for part in model.modules()) else FLOATS)


def plan_ahead(verifiers: Sequence[Verifier], most: Sequence[int], room: StepRoom) -> None:
    """Decide what each text has judged in the next step, by at most `most` tokens each."""
    for verifier, own in zip(verifiers, most, strict=True):
        verifier.look_up(own)
    ahead = available = [len(verifier.found.tokens) for verifier in verifiers]
    if any(available):
        ahead = best_ahead([verifier.rate for verifier in verifiers], available, room.cost, room.rows)
    for verifier, count in zip(verifiers, ahead, strict=True):
        verifier.proposal = verifier.found.first(count) if count else NONE


@torch.inference_mode()
def judge(
    logits: Tensor, samplers: Sequence[TokenSampler], proposals: Sequence[Proposal], top: int = 0
) -> list[list[Choice]]:
    """The tokens that come next in each text: those of its proposal that are accepted, then one of the model's own.

    A text with n proposed tokens has n + 1 rows of the logits [R, C].
    """
    drawn = [
        one.probabilities is not None and not own.sampling.greedy for one, own in zip(proposals, samplers, strict=True)
    ]
    if not any(drawn):
        return choose_each(logits, samplers, [proposal.tokens for proposal in proposals], top)
    parts = logits.split([len(proposal.tokens) + 1 for proposal in proposals])
    return [_judge_drawn(*each, top) for each in zip(parts, samplers, proposals, strict=True)]


def _judge_drawn(logits: Tensor, sampler: TokenSampler, proposal: Proposal, top: int) -> list[Choice]:
    """A token x drawn from q is accepted with probability min(1, p / q); else one is drawn from max(0, p - q)."""
    found: list[Choice] = []
    for n, token in enumerate(proposal.tokens if proposal.probabilities is not None else ()):
        assert proposal.probabilities is not None and sampler.uniform is not None
        row, seen, q = logits[n : n + 1], sampler.seen_along(()), proposal.probabilities[n]
        p = distribution(row, sampler.sampling, seen)
        accepted = bool(sampler.uniform.next() * q[token] < p[0, token])
        tokens = torch.tensor([token], device=p.device)
        if not accepted:
            tokens = draw((p - q).clamp(min=0), sampler.uniform.next())
        if sampler.seen is not None:
            sampler.seen[tokens] = True
        shares = choice_probabilities(row, tokens, top, sampler.sampling, seen) if top else [None]
        [own] = expect_numbers(log_probabilities(row, tokens).tolist())
        found.append(Choice(int(tokens), own, shares[0]))
        if not accepted:
            return found
    return found + choose_each(logits[len(found) :], [sampler], [proposal.tokens[len(found) :]], top)[0]
