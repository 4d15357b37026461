"""How far speculative decoding looks ahead: as many tokens as are expected to pay, by what was accepted so far.

A step that computes R tokens, the next one of each text and those proposed, costs 1 + EXTRA (R - 1) steps of one token,
whatever is accepted. If each proposed token is accepted with probability a, a text gets 1 + a + a^2 + ... + a^k tokens
(Leviathan et al. 2023, eq. 1). The k of each text are those that give most tokens per cost; none where none pays. The
cost is a fixed number, no clock: the same text on every machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heapreplace, heappop

EXTRA = 0.2  # of a step, for one more token to judge; SmolLM2-135M in float32 on two threads: 0.15 to 0.20
FORGET = 0.85  # weight of older evidence at each new judgement
MOST_EVIDENCE = 8.0  # judgements that all older ones count for at most, so that a change is noticed soon
PRIOR_WEIGHT = 2.0  # judgements that the prior counts for


def best_ahead(
    rates: Sequence[float], available: Sequence[int], extra: float | None = None, room: int | None = None
) -> list[int]:
    """How many proposed tokens of each text are judged: those that give most tokens per cost.

    Text b can propose `available[b]` tokens at most, each accepted with probability `rates[b]`; all texts together
    have `room` rows. One more token of text b gives rates[b]^k more: the best ones are taken while they give more per
    cost than those before.
    """
    extra = EXTRA if extra is None else extra
    ahead, tokens = [0] * len(rates), float(len(rates))
    left = sum(available) if room is None else room - len(rates)
    cost = 1 + extra * (len(rates) - 1)
    gains = [(-rate, text) for text, (rate, most) in enumerate(zip(rates, available, strict=True)) if most]
    heapify(gains)
    while gains and left > 0:
        gain, text = -gains[0][0], gains[0][1]
        if gain * cost <= extra * tokens:
            break
        ahead[text], tokens, cost, left = ahead[text] + 1, tokens + gain, cost + extra, left - 1
        if ahead[text] < available[text]:
            heapreplace(gains, (-gain * rates[text], text))
        else:
            heappop(gains)
    return ahead


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
