"""The request that `generate`, `stream`, `beam_search` and `speculate` take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

from torch import Tensor

from weft.foundation.errors import LengthError, WeftError
from weft.foundation.seeds import derive
from weft.inference.decoding.conditioning import SourceInput, expect_rows
from weft.inference.decoding.detokenizer import Detokenizer
from weft.inference.decoding.sampling import GREEDY, Sampling
from weft.inference.decoding.sessions import PrefillOptions

Overflow = Literal["refuse", "slide", "extend"]


@dataclass(frozen=True, eq=False)
class GenerationRequest:
    """Each prompt is continued `samples` times, by at most `max_tokens` tokens or up to a `stop` token.

    `seeds`: one per prompt, or one per text (prompts x samples); a number s stands for s, s + 1, ... `source`: tokens
    or vectors per prompt, images, or one memory for all, for encoder-decoders; `images` [B, channels, height, width]
    for image-text decoders. `overflow`: a text longer than the model was trained for is refused, slides on (its older
    half is forgotten each time it is full), or extends past that length where positions allow. `detokenizer`: gives
    each token's text, and ends a text at its stop strings. `top`: number of first tokens given with their
    probabilities; `step_top`: the same at every step, of the distribution that the token was chosen from.
    """

    prompts: Sequence[Sequence[int]]
    sampling: Sampling = GREEDY
    max_tokens: int = 64
    stop: Sequence[int] = ()
    seeds: int | Sequence[int] = 0
    samples: int = 1
    source: SourceInput | None = None
    images: Tensor | None = None
    overflow: Overflow = "refuse"
    detokenizer: Detokenizer | None = None
    top: int = 0
    step_top: int = 0
    prefill: PrefillOptions = field(default_factory=PrefillOptions)

    def __post_init__(self) -> None:
        object.__setattr__(self, "prompts", tuple(tuple(int(token) for token in prompt) for prompt in self.prompts))
        object.__setattr__(self, "stop", tuple(int(token) for token in self.stop))
        if self.max_tokens < 1 or self.samples < 1:
            raise WeftError(
                f"max_tokens {self.max_tokens} and samples {self.samples} generate nothing: use at least 1 of each"
            )
        for name, number in (("top", self.top), ("step_top", self.step_top)):
            if number < 0:
                raise WeftError(f"{name} {number} is not a number of tokens: use 0 (no probabilities) or more")
        if self.overflow not in get_args(Overflow):
            raise WeftError(f"there is no overflow {self.overflow!r}: choose refuse, slide or extend")
        if not self.prompts:
            raise WeftError("no prompts: give at least one")
        if not all(self.prompts):
            empty = next(row for row, prompt in enumerate(self.prompts) if not prompt)
            raise WeftError(f"prompt {empty} is empty: give at least one token, for example the start token")
        expect_rows(len(self.prompts), self.source, self.images)
        if not isinstance(self.seeds, int):
            object.__setattr__(self, "seeds", tuple(int(seed) for seed in self.seeds))
        self.text_seeds()  # which checks their number

    def text_seeds(self) -> list[int]:
        """One seed per text: a prompt's first sample has the prompt's own, so that more samples change none before."""
        count = len(self.prompts)
        each = [self.seeds + row for row in range(count)] if isinstance(self.seeds, int) else list(self.seeds)
        if len(each) == count * self.samples:
            return each
        if len(each) != count:
            raise WeftError(
                f"{len(each)} seeds for {count} prompts: give one per prompt, one per text, or a single number"
            )
        return [seed if n == 0 else derive(seed, "sample", n) for seed in each for n in range(self.samples)]

    def context_limit(self, length: int | None, slides: bool = True) -> int | None:
        """How many tokens a text may have before it slides, for a model trained for `length`; None: it never does.

        `slides`: whether the way of decoding can forget the older half of a text; otherwise too long ones are refused.
        """
        longest = max(len(prompt) for prompt in self.prompts)
        # The last token generated is never read.
        if length is None or self.overflow == "extend" or longest + self.max_tokens - 1 <= length:
            return None
        if self.overflow == "refuse" or not slides:
            raise LengthError(
                f"a prompt of {longest} tokens and {self.max_tokens} new ones, but the model was trained for {length}: "
                f"give fewer{', or overflow=' + repr('slide') + ' to forget the oldest' if slides else ''}"
            )
        return length
