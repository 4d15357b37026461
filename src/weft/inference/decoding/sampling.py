"""Sampling: from logits to a distribution, and from a distribution to a token.

p(c) = softmax(l / temperature), cut to the likeliest: top k; the nucleus of mass p (Holtzman et al. 2020); at least
min_p times the best (Nguyen et al. 2024). Tokens seen before can be made less likely (Keskar et al. 2019).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, islice
from typing import NamedTuple

import torch
from torch import Tensor

from weft.foundation.errors import WeftError
from weft.foundation.numerics import widen
from weft.foundation.seeds import generator
from weft.inference.fast.native.summaries import likeliest, log_sum_exp

BLOCK = 64


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen; temperature 0 is greedy: always the likeliest.

    `repetition` above 1 divides the positive logits of tokens seen before, and multiplies the negative ones.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < float("inf"):
            raise WeftError(f"a temperature of {self.temperature} makes no distribution: use 0 (greedy) or more")
        if self.top_k is not None and self.top_k < 1:
            raise WeftError(f"top_k {self.top_k} leaves no token: use at least 1, or leave it out")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise WeftError(f"top_p {self.top_p} is no share of the probability: use more than 0, at most 1")
        if self.min_p is not None and not 0 <= self.min_p <= 1:
            raise WeftError(f"min_p {self.min_p} is no share of the best probability: use 0 to 1")
        if not 0 < self.repetition < float("inf"):
            raise WeftError(f"a repetition penalty of {self.repetition} is none: use 1 (none) or a little more")

    @property
    def greedy(self) -> bool:
        return self.temperature == 0


GREEDY = Sampling(temperature=0.0)


def expect_numbers(values: Sequence[float]) -> Sequence[float]:
    """Log-probabilities or probabilities as they are; refused where one is NaN, as logits that are not finite give it.

    They are on their way to the user anyhow, so no pass over the logits and no wait for the device is added.
    """
    if any(map(math.isnan, values)):
        raise WeftError(
            "the model gives logits that are not finite (NaN or infinity), so no token can be chosen: its weights are "
            "broken; import it again, or train again with a smaller training.rate"
        )
    return values


def penalize(logits: Tensor, seen: Tensor, penalty: float) -> Tensor:
    """l / penalty where l > 0, l * penalty else, for tokens `seen` [B, C] before."""
    return torch.where(seen, torch.where(logits > 0, logits / penalty, logits * penalty), logits)


def distribution(logits: Tensor, sampling: Sampling, seen: Tensor | None = None) -> Tensor:
    """[..., C] -> probabilities [..., C] in float64; cut tokens have exactly 0; ties at an edge are all kept.

    Greedy puts all on the likeliest token, the first one of equals.
    """
    logits = logits.double()
    if seen is not None and sampling.repetition != 1.0:
        logits = penalize(logits, seen, sampling.repetition)
    if sampling.greedy:
        return torch.zeros_like(logits).scatter_(-1, logits.argmax(-1, keepdim=True), 1.0)
    # The best logit becomes 0 before the division: a tiny temperature must not overflow.
    logits = (logits - logits.amax(-1, keepdim=True)) / sampling.temperature
    if sampling.top_k is not None and sampling.top_k < logits.shape[-1]:
        least = logits.topk(sampling.top_k, dim=-1).values[..., -1:]
        logits = logits.masked_fill(logits < least, float("-inf"))
    p = logits.softmax(-1)
    if sampling.top_p is not None and sampling.top_p < 1:
        ordered = p.sort(dim=-1, descending=True).values
        inside = ordered.cumsum(-1) - ordered < sampling.top_p
        least = torch.where(inside, ordered, 1.0).amin(-1, keepdim=True)
        p = p.masked_fill(p < least, 0.0)
    if sampling.min_p:
        p = p.masked_fill(p < sampling.min_p * p.amax(-1, keepdim=True), 0.0)
    # A sum of many numbers has other bits with other threads and rows; a cumulative sum adds one after the other.
    return p / p.cumsum(-1)[..., -1:]


@torch.inference_mode()
def top_probabilities(logits: Tensor, top: int, sampling: Sampling = Sampling()) -> list[tuple[int, float]]:
    """Logits [C] -> the `top` likeliest tokens with their probabilities, best first."""
    best = distribution(logits, sampling).topk(min(top, logits.shape[-1]))
    return list(zip(best.indices.tolist(), expect_numbers(best.values.tolist()), strict=True))


@torch.inference_mode()
def choice_probabilities(
    logits: Tensor, tokens: Tensor, top: int, sampling: Sampling, seen: Tensor | None = None
) -> list[list[tuple[int, float]]]:
    """The distributions that tokens [B] were chosen from, of logits [B, C]: the `top` likeliest of each, best first.

    Tokens that `sampling` cuts are left out; a chosen token that is not among the likeliest stands last. A greedy
    choice is the likeliest token of the model's own distribution.
    """
    p = distribution(logits, Sampling(repetition=sampling.repetition) if sampling.greedy else sampling, seen)
    best = p.topk(min(top, p.shape[-1]))
    found = []
    for row, token in enumerate(tokens.tolist()):
        pairs = zip(best.indices[row].tolist(), best.values[row].tolist(), strict=True)
        likeliest = [(index, share) for index, share in pairs if share > 0]
        chosen = [] if any(index == token for index, _ in likeliest) else [(token, float(p[row, token]))]
        found.append(likeliest + chosen)
    return found


def draw(p: Tensor, uniform: Tensor) -> Tensor:
    """Token ids [...] from p [..., C] by the inverse of the cumulative sum at `uniform` [...] in [0, 1).

    A token of probability 0 is never drawn: its stretch of the sum is empty. Of NaN, the last token is drawn.
    """
    sums = p.double().cumsum(-1)
    total = sums[..., -1:]
    below = torch.nextafter(total, torch.zeros_like(total))
    at = torch.minimum(uniform[..., None].to(sums) * total, below)
    return torch.searchsorted(sums, at, right=True)[..., 0].clamp_(max=p.shape[-1] - 1)


def choose_tokens(
    logits: Tensor, sampling: Sampling, uniform: Tensor | None = None, seen: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Logits [B, C] -> tokens [B] and the log-probabilities [B] that the model itself gives them, uncut."""
    tokens = pick_tokens(logits, sampling, uniform, seen)
    return tokens, log_probabilities(logits, tokens)


def pick_tokens(
    logits: Tensor, sampling: Sampling, uniform: Tensor | None = None, seen: Tensor | None = None
) -> Tensor:
    """Logits [B, C] -> tokens [B]."""
    wide = widen(logits)
    if sampling.greedy:
        penalized = seen is not None and sampling.repetition != 1.0
        return likeliest(penalize(wide, seen, sampling.repetition) if penalized and seen is not None else wide)
    if uniform is None:
        raise WeftError("drawing needs one uniform number per row: give `uniform`, or use temperature 0")
    return draw(distribution(wide, sampling, seen), uniform)


def log_probabilities(logits: Tensor, tokens: Tensor) -> Tensor:
    """Those [B] that the model itself gives tokens [B], from logits [B, C]."""
    wide = widen(logits)
    return wide.gather(-1, tokens[:, None])[:, 0] - log_sum_exp(wide)


def top_log_probabilities(logits: Tensor, top: int) -> list[tuple[tuple[int, float], ...]]:
    """Logits [R, C] -> the model's `top` likeliest tokens of each row with their log-probabilities, best first."""
    if not top:
        return [()] * len(logits)
    wide = widen(logits)
    best = wide.topk(min(top, wide.shape[-1]))
    values = (best.values - log_sum_exp(wide)[:, None]).tolist()
    return [tuple(zip(*pair, strict=True)) for pair in zip(best.indices.tolist(), values, strict=True)]


class UniformStreams:
    """One stream of uniform numbers per row, each from its own seed: what a row draws never depends on other rows."""

    def __init__(self, seeds: Sequence[int], device: torch.device) -> None:
        self.generators = [generator(seed, "sampling") for seed in seeds]
        self.device = device
        self.block = torch.empty(len(seeds), 0, dtype=torch.float64, device=device)
        self.used = 0

    def next(self) -> Tensor:
        """The next number of each row, [B], float64."""
        numbers = self.ahead(1)[:, 0]
        self.skip(1)
        return numbers

    def ahead(self, count: int) -> Tensor:
        """The next `count` numbers of each row, [B, count], which stay the next ones until they are skipped."""
        while self.used + count > self.block.shape[1]:
            numbers = [torch.rand(BLOCK, generator=g, dtype=torch.float64) for g in self.generators]
            self.block = torch.cat((self.block[:, self.used :], torch.stack(numbers).to(self.device)), 1)
            self.used = 0
        return self.block[:, self.used : self.used + count]

    def skip(self, count: int) -> None:
        """These many numbers of each row are used."""
        self.used += count

    def keep(self, rows: Sequence[int]) -> None:
        """Keep only these rows, in this order."""
        self.generators = [self.generators[row] for row in rows]
        self.block = self.block[torch.tensor(rows, device=self.device)]


class Choice(NamedTuple):
    """A token that was chosen, the log-probability that the model itself gives it, and the likeliest if asked for."""

    token: int
    log_probability: float
    probabilities: list[tuple[int, float]] | None = None


class TokenSampler:
    """How the tokens of one text are chosen: its sampling, its random numbers, and the tokens that it has so far."""

    def __init__(
        self, sampling: Sampling, seed: int, context: Sequence[int], vocabulary: int, device: torch.device
    ) -> None:
        self.sampling = sampling
        self.uniform = None if sampling.greedy else UniformStreams([seed], device)
        self.seen: Tensor | None = None
        if sampling.repetition != 1.0:
            self.seen = torch.zeros(vocabulary, dtype=torch.bool, device=device)
            self.seen[list(context)] = True

    def seen_along(self, proposal: Sequence[int]) -> Tensor | None:
        """What was seen before each of n proposed tokens and after them, [n + 1, C], where a penalty needs it."""
        if self.seen is None:
            return None
        seen = self.seen.repeat(len(proposal) + 1, 1)
        for n, token in enumerate(proposal):
            seen[n + 1 :, token] = True
        return seen

    def note(self, tokens: Sequence[int]) -> None:
        """These tokens came, each by a random number of its own."""
        if self.uniform is not None:
            self.uniform.skip(len(tokens))
        if self.seen is not None:
            self.seen[list(tokens)] = True


def choose_each(
    logits: Tensor, samplers: Sequence[TokenSampler], proposals: Sequence[Sequence[int]] = (), top: int = 0
) -> list[list[Choice]]:
    """The tokens that come next in each text, by its own sampler: those of its proposal that are chosen, and one more.

    A text with n proposed tokens has n + 1 rows of the logits [R, C]: of what follows the text, and each of them. Each
    token is chosen as it is without proposals, by the same random number, so a proposal decides only how many come. It
    is accepted with probability p(x), as the rule for q(x) = 1 demands. Equal samplings are done at once. `top`: number
    of likeliest tokens that each choice gives.
    """
    proposals = proposals or [()] * len(samplers)
    starts = list(accumulate((len(proposal) + 1 for proposal in proposals), initial=0))
    kinds: dict[Sampling, list[int]] = {}
    for text, sampler in enumerate(samplers):
        kinds.setdefault(sampler.sampling, []).append(text)
    found: list[list[Choice]] = [[] for _ in samplers]
    for sampling, texts in kinds.items():
        part = logits
        if len(kinds) > 1:
            rows = [row for text in texts for row in range(starts[text], starts[text + 1])]
            part = logits[torch.tensor(rows, device=logits.device)]
        own, asked = [samplers[text] for text in texts], [proposals[text] for text in texts]
        for text, choices in zip(texts, _choose_alike(part, sampling, own, asked, top), strict=True):
            found[text] = choices
    return found


def _choose_alike(
    logits: Tensor, sampling: Sampling, samplers: Sequence[TokenSampler], proposals: Sequence[Sequence[int]], top: int
) -> list[list[Choice]]:
    """`choose_each` for texts of one sampling."""
    pairs = list(zip(samplers, proposals, strict=True))
    numbers = [one.uniform.ahead(len(asked) + 1)[0] for one, asked in pairs if one.uniform is not None]
    seen = [marks for one, asked in pairs if (marks := one.seen_along(asked)) is not None]
    uniform, marked = (torch.cat(each) if each else None for each in (numbers, seen))
    tokens = pick_tokens(logits, sampling, uniform, marked)
    chosen, first = tokens.tolist(), 0
    rows: list[int] = []
    counts: list[int] = []
    for sampler, asked in pairs:
        same = next((n for n, token in enumerate(asked) if token != chosen[first + n]), len(asked))
        sampler.note(chosen[first : first + same + 1])
        rows += range(first, first + same + 1)
        counts.append(same + 1)
        first += len(asked) + 1
    if len(rows) < len(chosen):
        kept = torch.tensor(rows, device=logits.device)
        logits, tokens, marked = logits[kept], tokens[kept], None if marked is None else marked[kept]
    shares: Sequence[list[tuple[int, float]] | None] = [None] * len(rows)
    if top:
        shares = choice_probabilities(logits, tokens, top, sampling, marked)
    came = map(Choice, tokens.tolist(), expect_numbers(log_probabilities(logits, tokens).tolist()), shares)
    return [list(islice(came, count)) for count in counts]
