"""Sampling: from logits to a distribution, and from a distribution to a token.

p(c) = softmax(l / temperature), cut to the likeliest: top k; the nucleus of mass p (Holtzman et al. 2020); at least
min_p times the best (Nguyen et al. 2024). Tokens seen before can be made less likely (Keskar et al. 2019).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from weft.foundation.errors import WeftError
from weft.foundation.numerics import widen
from weft.foundation.seeds import generator

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
    return p / p.sum(-1, keepdim=True)


@torch.inference_mode()
def top_probabilities(logits: Tensor, top: int, sampling: Sampling = Sampling()) -> list[tuple[int, float]]:
    """Logits [C] -> the `top` likeliest tokens with their probabilities, best first."""
    best = distribution(logits, sampling).topk(min(top, logits.shape[-1]))
    return list(zip(best.indices.tolist(), best.values.tolist(), strict=True))


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

    A token of probability 0 is never drawn: its stretch of the sum is empty.
    """
    sums = p.double().cumsum(-1)
    total = sums[..., -1:]
    below = torch.nextafter(total, torch.zeros_like(total))
    at = torch.minimum(uniform[..., None].to(sums) * total, below)
    return torch.searchsorted(sums, at, right=True)[..., 0]


def choose_tokens(
    logits: Tensor, sampling: Sampling, uniform: Tensor | None = None, seen: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Logits [B, C] -> tokens [B] and the log-probabilities [B] that the model itself gives them, uncut."""
    wide = widen(logits)
    if sampling.greedy:
        penalized = seen is not None and sampling.repetition != 1.0
        tokens = (penalize(wide, seen, sampling.repetition) if penalized and seen is not None else wide).argmax(-1)
    else:
        if uniform is None:
            raise WeftError("drawing needs one uniform number per row: give `uniform`, or use temperature 0")
        tokens = draw(distribution(wide, sampling, seen), uniform)
    chosen = wide.gather(-1, tokens[:, None])[:, 0]
    return tokens, chosen - wide.logsumexp(-1)


class UniformStreams:
    """One stream of uniform numbers per row, each from its own seed: what a row draws never depends on other rows."""

    def __init__(self, seeds: Sequence[int], device: torch.device) -> None:
        self.generators = [generator(seed, "sampling") for seed in seeds]
        self.device = device
        self.block: Tensor | None = None
        self.used = BLOCK

    def next(self) -> Tensor:
        """The next number of each row, [B], float64."""
        if self.block is None or self.used == BLOCK:
            numbers = [torch.rand(BLOCK, generator=g, dtype=torch.float64) for g in self.generators]
            self.block, self.used = torch.stack(numbers).to(self.device), 0
        self.used += 1
        return self.block[:, self.used - 1]

    def keep(self, rows: Sequence[int]) -> None:
        """Keep only these rows, in this order."""
        self.generators = [self.generators[row] for row in rows]
        if self.block is not None:
            self.block = self.block[torch.tensor(rows, device=self.device)]


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


def choose_each(logits: Tensor, samplers: Sequence[TokenSampler]) -> tuple[list[int], list[float]]:
    """Logits [B, C] -> tokens and log-probabilities, each row by its own sampler; equal samplings are done at once."""
    kinds: dict[Sampling, list[int]] = {}
    for row, sampler in enumerate(samplers):
        kinds.setdefault(sampler.sampling, []).append(row)
    tokens, log_probabilities = [0] * len(samplers), [0.0] * len(samplers)
    for sampling, rows in kinds.items():
        own = [samplers[row] for row in rows]
        uniform = [one.uniform.next() for one in own if one.uniform is not None]
        seen = [one.seen for one in own if one.seen is not None]
        part = logits if len(kinds) == 1 else logits[torch.tensor(rows, device=logits.device)]
        found = choose_tokens(
            part, sampling, torch.cat(uniform) if uniform else None, torch.stack(seen) if seen else None
        )
        for row, token, log_probability in zip(rows, *(each.tolist() for each in found), strict=True):
            tokens[row], log_probabilities[row] = token, log_probability
    for sampler, token in zip(samplers, tokens, strict=True):
        if sampler.seen is not None:
            sampler.seen[token] = True
    return tokens, log_probabilities
