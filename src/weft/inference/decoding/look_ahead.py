"""How far speculative decoding looks ahead: as many tokens as are expected to pay, by what was accepted so far.

Judging k proposed tokens beside the next one costs 1 + EXTRA k steps, whatever is accepted. If each is accepted with
probability a, the step gives 1 + a + a^2 + ... + a^k tokens (Leviathan et al. 2023, eq. 1). The k that gives most
tokens per cost is proposed; none where none pays. The cost is a fixed number, no clock: the same text on every machine.
"""

from __future__ import annotations

from collections.abc import Sequence

EXTRA = 0.2  # of a step, for one more token to judge; SmolLM2-135M in float32 on two threads: 0.15 to 0.20
FORGET = 0.85  # weight of older evidence at each new judgement
MOST_EVIDENCE = 8.0  # judgements that all older ones count for at most, so that a change is noticed soon
PRIOR_WEIGHT = 2.0  # judgements that the prior counts for


def best_ahead(rates: Sequence[float], available: Sequence[int], extra: float = EXTRA) -> int:
    """The k for all texts of a batch that gives most tokens per cost; text b can propose `available[b]` at most.

    A step of B texts and k proposals each costs 1 + extra (B (k + 1) - 1).
    """
    rows, tokens, best, most_gained = len(rates), 0.0, 0, 0.0
    for ahead in range(max(available, default=0) + 1):
        tokens += sum(rate**ahead for rate, most in zip(rates, available, strict=True) if ahead <= most)
        gained = tokens / (1 + extra * (rows * (ahead + 1) - 1))
        if gained > most_gained:
            best, most_gained = ahead, gained
    return best


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
