"""How far speculative decoding looks ahead: as many tokens as are expected to pay, by what was accepted so far.

A step computes R tokens, the next one of each text and those proposed, and costs c(R) steps of one token, whatever is
accepted. If each proposed token is accepted with probability a, a text gets 1 + a + a^2 + ... + a^k tokens (Leviathan
et al. 2023, eq. 1). The k of each text are those that give most tokens per cost; none where none pays. Costs are fixed
numbers, no clock: the same text on every machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heapreplace
from typing import NamedTuple

MARGIN = 0.05  # more tokens per cost than without proposals: rates are estimates, and the best of them flatter
FORGET = 0.85  # weight of older evidence at each new judgement
MOST_EVIDENCE = 8.0  # judgements that all older ones count for at most, so that a change is noticed soon
PRIOR_WEIGHT = 2.0  # judgements that the prior counts for


class StepCost(NamedTuple):
    """c(R) = 1 + e (R - 1), with e = `extra`, or `early` for fewer than `tile` rows, which a product computes apart."""

    extra: float
    tile: int = 1
    early: float = 0.0

    def of(self, rows: int) -> float:
        """c(R): the time of a step of R = `rows` rows, in steps of one row."""
        return 1 + (self.extra if rows >= self.tile else self.early) * (rows - 1)


# Two threads with AVX-512, medians of 12: GPT-2 124M in float32, 2, 3, 4, 8, 16, 32 rows: 1.33, 1.72, 1.29, 1.80, 2.82,
# 4.98 steps; SmolLM2-135M Q4_1: 1.24, 1.73, 1.89, 3.59, 6.72, 13.6.
FLOATS = StepCost(0.125, 4, 0.35)
BLOCKS = StepCost(0.36, 3, 0.24)
BY_TORCH = StepCost(0.2)


def best_ahead(
    rates: Sequence[float], available: Sequence[int], cost: StepCost = BY_TORCH, room: int | None = None
) -> list[int]:
    """How many proposed tokens of each text are judged: those that give most tokens per cost.

    Text b can propose `available[b]` tokens at most, each accepted with probability `rates[b]`; all texts together
    have `room` rows. The k-th token of text b gives rates[b]^k more: of any number of rows, the likeliest are best.
    """
    rows, tokens = len(rates), float(len(rates))
    most = rows + sum(available) if room is None else room
    gains = [(-rate, text) for text, (rate, own) in enumerate(zip(rates, available, strict=True)) if own and rate]
    heapify(gains)
    order: list[int] = []
    taken, counts, best = 0, [0] * rows, (1 + MARGIN) * tokens / cost.of(rows)
    while gains and rows < most:
        gain, text = -gains[0][0], gains[0][1]
        if gain * cost.of(rows) < cost.extra * tokens and rows >= cost.tile:
            break  # from here on each one costs more than it gives
        rows, tokens = rows + 1, tokens + gain
        order.append(text)
        counts[text] += 1
        if tokens / cost.of(rows) > best:
            taken, best = len(order), tokens / cost.of(rows)
        if counts[text] < available[text]:
            heapreplace(gains, (-gain * rates[text], text))
        else:
            heappop(gains)
    return [order[:taken].count(text) for text in range(len(rates))]


class AcceptanceRates:
    """How often proposals of each kind were accepted in one text; a kind is the number of tokens that matched.

    rate = (accepted + weight prior) / (judged + weight), older judgements counting less and less.
    """

    def __init__(self, priors: Sequence[float] = (0.5,)) -> None:
        self.priors = list(priors)
        self.accepted = [0.0] * len(self.priors)
        self.judged = [0.0] * len(self.priors)

    def rate(self, kind: int) -> float:
        """The estimate for proposals of this kind; kinds beyond the last are like it."""
        n = self._index(kind)
        return (self.accepted[n] + PRIOR_WEIGHT * self.priors[n]) / (self.judged[n] + PRIOR_WEIGHT)

    def learn(self, kind: int, proposed: Sequence[int], came: Sequence[int]) -> None:
        """One more piece of evidence: the tokens that came in place of those proposed, of which none need be judged.

        What was only thought of teaches as much as what was judged, so a pause ends when the text begins to repeat.
        """
        pairs = list(zip(proposed, came, strict=False))
        same = next((n for n, (one, other) in enumerate(pairs) if one != other), len(pairs))
        n = self._index(kind)
        kept = min(FORGET, MOST_EVIDENCE / max(self.judged[n], 1.0))
        self.accepted[n] = kept * self.accepted[n] + same
        self.judged[n] = kept * self.judged[n] + min(same + 1, len(pairs))

    def _index(self, kind: int) -> int:
        return min(kind, len(self.priors) - 1)
