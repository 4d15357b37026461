"""Generation: write on from prompts, token by token, many texts at once.

What a text becomes depends on its own prompt, seed and sampling only: not on its company, the padding, the cache or
the chunks in which the prompt was read. Texts that are finished leave the batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from weft.foundation.errors import LengthError, WeftError
from weft.foundation.seeds import derive
from weft.inference.decoding.conditioning import (
    MemoryConditioned,
    SourceTexts,
    condition,
    declared,
    device_of,
    eval_mode,
)
from weft.inference.decoding.sampling import GREEDY, Draws, Sampling, choose, distribution
from weft.inference.decoding.sessions import DecodingSession, PrefillOptions, start_session
from weft.inference.decoding.text_stream import TextReader

Ended = Literal["stop", "length"]
Overflow = Literal["refuse", "slide", "extend"]


class GeneratedToken(NamedTuple):
    """One token of one row; `ended` says why it was the last. A stop token is given too, as the last.

    `text`: what this token makes certain of the text, where `generate` was told how to read it.
    """

    row: int
    token: int
    log_probability: float
    ended: Ended | None = None
    text: str = ""


@dataclass(frozen=True)
class Generated:
    """What was written after a prompt, without the stop token; `text` ends before a stop string.

    `log_probabilities`: what the model itself gives each token. `score`: their sum, the stop token's included; a beam
    divides it by its length penalty. `alignment` [T, S]: where each token looked in the source, if the model says so.
    """

    tokens: list[int]
    log_probabilities: list[float]
    ended: Ended
    score: float
    alignment: Tensor | None = None
    text: str | None = None


def generate(
    model: nn.Module,
    prompts: Sequence[Sequence[int]],
    sampling: Sampling = GREEDY,
    *,
    max_tokens: int = 64,
    stop: Sequence[int] = (),
    seeds: int | Sequence[int] = 0,
    samples: int = 1,
    source: SourceTexts | None = None,
    images: Tensor | None = None,
    overflow: Overflow = "refuse",
    text: TextReader | None = None,
    prefill: PrefillOptions = PrefillOptions(),
) -> list[Generated]:
    """Continue each prompt `samples` times: prompt 0's first, then prompt 1's, ...

    `seeds`: one a prompt; a number s stands for s, s + 1, ... `overflow`: a text longer than the model was trained for
    is refused, slides on (its older half is forgotten each time it is full), or extends past it where positions allow.
    `text`: how to read tokens as text, and strings at which it stops.
    """
    loop = GenerationLoop(
        model, prompts, sampling, max_tokens, stop, seeds, samples, source, images, overflow, text, prefill
    )
    steps: list[list[GeneratedToken]] = [[] for _ in range(loop.rows)]
    for step in loop:
        steps[step.row].append(step)
    return [loop.gather(row, own) for row, own in enumerate(steps)]


def stream(
    model: nn.Module,
    prompts: Sequence[Sequence[int]],
    sampling: Sampling = GREEDY,
    *,
    max_tokens: int = 64,
    stop: Sequence[int] = (),
    seeds: int | Sequence[int] = 0,
    samples: int = 1,
    source: SourceTexts | None = None,
    images: Tensor | None = None,
    overflow: Overflow = "refuse",
    text: TextReader | None = None,
    prefill: PrefillOptions = PrefillOptions(),
) -> Iterator[GeneratedToken]:
    """The same as `generate`, each token given as soon as it is chosen."""
    return iter(
        GenerationLoop(
            model, prompts, sampling, max_tokens, stop, seeds, samples, source, images, overflow, text, prefill
        )
    )


class GenerationLoop:
    """A batch of texts being written; iterating gives each `GeneratedToken`, once."""

    def __init__(
        self,
        model: nn.Module,
        prompts: Sequence[Sequence[int]],
        sampling: Sampling,
        max_tokens: int,
        stop: Sequence[int],
        seeds: int | Sequence[int],
        samples: int,
        source: SourceTexts | None,
        images: Tensor | None,
        overflow: Overflow,
        text: TextReader | None,
        prefill: PrefillOptions,
    ) -> None:
        declaration = declared(model)
        if max_tokens < 1 or samples < 1:
            raise WeftError(f"max_tokens {max_tokens} and samples {samples} write nothing: use at least 1 of each")
        self.limit = context_limit(declaration.length, prompts, max_tokens, overflow)
        self.model, self.sampling, self.max_tokens, self.stop = model, sampling, max_tokens, frozenset(stop)
        self.vocabulary = declaration.vocabulary or 0
        self.prompts = [list(prompt)[-(self.limit or len(prompt)) :] for prompt in prompts]
        self.samples, self.rows = samples, len(prompts) * samples
        self.seeds = spread_seeds(seeds, len(prompts), samples)
        with eval_mode(model):
            self.conditioned = condition(model, len(prompts), source, images, prefill.side, prefill.native)
        self.real = (
            self.conditioned.memory.token_positions.real if isinstance(self.conditioned, MemoryConditioned) else None
        )
        self.session: DecodingSession = start_session(self.conditioned, prefill)
        self.alignments: list[list[Tensor]] = [[] for _ in range(self.rows)]
        before = [prompt for prompt in self.prompts for _ in range(samples)]
        self.texts = None if text is None else [text.stream(prompt) for prompt in before]

    def __iter__(self) -> Iterator[GeneratedToken]:
        with eval_mode(self.model):
            yield from self._write()

    def _write(self) -> Iterator[GeneratedToken]:
        device = device_of(self.model)
        logits = self._begin(device)
        live = list(range(self.rows))
        contexts = [list(prompt) for prompt in self.prompts for _ in range(self.samples)]
        draws = None if self.sampling.greedy else Draws(self.seeds, device)
        seen = self._seen(contexts, device)
        for count in range(1, self.max_tokens + 1):
            tokens, chances = self._choose(logits, draws, seen)
            self._note_alignment(live)
            going_on = []
            for place, (row, token, chance) in enumerate(zip(live, tokens.tolist(), chances.tolist(), strict=True)):
                contexts[row].append(token)
                step = self._step(row, token, chance, count == self.max_tokens)
                if step.ended is None:
                    going_on.append(place)
                yield step
            if not going_on:
                return
            if len(going_on) < len(live):
                kept = torch.tensor(going_on, device=device)
                live = [live[place] for place in going_on]
                tokens = tokens[kept]
                self.session.reorder(kept)
                if draws is not None:
                    draws.keep(going_on)
                seen = None if seen is None else seen[kept]
            logits = self._advance(tokens, live, contexts)

    def _step(self, row: int, token: int, chance: float, last: bool) -> GeneratedToken:
        """Whether a token ends its text, and the text that it makes certain."""
        stop = token in self.stop
        text = ""
        if self.texts is not None:
            text = "" if stop else self.texts[row].feed(token)
            if stop or last:
                text += self.texts[row].finish()
            stop = stop or self.texts[row].stopped
        return GeneratedToken(row, token, chance, "stop" if stop else "length" if last else None, text)

    def _begin(self, device: torch.device) -> Tensor:
        """Each prompt is read once, however many samples continue it."""
        logits = self.session.begin(self.prompts)
        if self.samples == 1:
            return logits
        rows = torch.arange(len(self.prompts), device=device).repeat_interleave(self.samples)
        self.session.reorder(rows)
        return logits[rows]

    @torch.inference_mode()
    def _choose(self, logits: Tensor, draws: Draws | None, seen: Tensor | None) -> tuple[Tensor, Tensor]:
        tokens, chances = choose(logits, self.sampling, None if draws is None else draws.next(), seen)
        if seen is not None:
            seen[torch.arange(len(tokens), device=tokens.device), tokens] = True
        return tokens, chances

    def _advance(self, tokens: Tensor, live: list[int], contexts: list[list[int]]) -> Tensor:
        """One more step; where a text is full, its older half goes and all texts are read anew."""
        if self.limit is None or all(len(contexts[row]) <= self.limit for row in live):
            return self.session.advance(tokens)
        for row in live:
            if len(contexts[row]) > self.limit:
                contexts[row] = contexts[row][-max(1, self.limit // 2) :]
        return self.session.begin([contexts[row] for row in live])

    def _seen(self, contexts: list[list[int]], device: torch.device) -> Tensor | None:
        if self.sampling.repetition == 1.0:
            return None
        seen = torch.zeros(self.rows, self.vocabulary, dtype=torch.bool, device=device)
        for row, context in enumerate(contexts):
            seen[row, context] = True
        return seen

    def _note_alignment(self, live: list[int]) -> None:
        if self.session.alignment is not None:
            for place, row in enumerate(live):
                self.alignments[row].append(self.session.alignment[place])

    def gather(self, row: int, steps: list[GeneratedToken]) -> Generated:
        """All steps of a row as one."""
        ended = steps[-1].ended
        assert ended is not None
        kept = steps[:-1] if steps[-1].token in self.stop else steps
        return Generated(
            [step.token for step in kept],
            [step.log_probability for step in kept],
            ended,
            sum(step.log_probability for step in steps),
            self._alignment(row, len(kept)),
            None if self.texts is None else "".join(step.text for step in steps),
        )

    def _alignment(self, row: int, length: int) -> Tensor | None:
        """[T, S], real source tokens only."""
        if not self.alignments[row]:
            return None
        whole = torch.stack(self.alignments[row])[:length]
        return whole if self.real is None else whole[:, self.real[row // self.samples]]


def context_limit(
    length: int | None, prompts: Sequence[Sequence[int]], max_tokens: int, overflow: Overflow
) -> int | None:
    """How many tokens a text may have before it slides; None where it never does."""
    if overflow not in ("refuse", "slide", "extend"):
        raise WeftError(f"there is no overflow {overflow!r}: choose refuse, slide or extend")
    longest = max((len(prompt) for prompt in prompts), default=0)
    # The last token written is never read.
    if length is None or overflow == "extend" or longest + max_tokens - 1 <= length:
        return None
    if overflow == "refuse":
        raise LengthError(
            f"a prompt of {longest} tokens and {max_tokens} new ones, but the model was trained for {length}: "
            f"give fewer, or overflow='slide' to forget the oldest"
        )
    return length


def spread_seeds(seeds: int | Sequence[int], prompts: int, samples: int) -> list[int]:
    """One seed a text: a prompt's first sample has the prompt's own, so that asking for more changes none before."""
    each = [seeds + row for row in range(prompts)] if isinstance(seeds, int) else list(seeds)
    if len(each) != prompts:
        raise WeftError(f"{len(each)} seeds for {prompts} prompts: give one a prompt, or a single number")
    return [seed if n == 0 else derive(seed, "sample", n) for seed in each for n in range(samples)]


def next_distribution(
    model: nn.Module,
    prompt: Sequence[int],
    top: int = 10,
    sampling: Sampling = Sampling(),
    *,
    source: SourceTexts | None = None,
    images: Tensor | None = None,
) -> list[tuple[int, float]]:
    """The likeliest next tokens and their probabilities, best first."""
    context_limit(declared(model).length, [prompt], 1, "refuse")
    with eval_mode(model), torch.inference_mode():
        logits = start_session(condition(model, 1, source, images), PrefillOptions()).begin([prompt])
        best = distribution(logits[0], sampling).topk(min(top, logits.shape[-1]))
    return list(zip(best.indices.tolist(), best.values.tolist(), strict=True))
