"""Requests: one text that is asked of the engine, and the errors that it may end in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from weft.foundation.errors import LengthError, WeftError
from weft.inference.decoding.detokenizer import Detokenizer
from weft.inference.decoding.sampling import GREEDY, Sampling
from weft.models.output import Declaration, Memory


class QueueFull(WeftError):
    """More requests than the engine may hold; the same request may be accepted later."""


class Cancelled(WeftError):
    """The request was cancelled before its text was finished."""


class EngineStopped(WeftError):
    """The engine was closed, or failed; it takes no more requests."""


@dataclass(frozen=True, eq=False)
class EngineRequest:
    """One text to generate; it becomes what `generate` makes of it alone.

    `source`: tokens, or one row of memory, for encoder-decoders; `image` [channels, height, width] for image-text
    decoders. `shared`: number of first tokens that other prompts begin with too, for an engine with a prefix cache, in
    which requests find only what others of an equal `cache_key` have left. `top`: number of likeliest tokens given with
    each token. `score_prompt`: the prompt's own tokens are scored too, see `GenerationHandle.prompt_scores`; nothing
    need be generated then.
    """

    prompt: Sequence[int]
    sampling: Sampling = GREEDY
    max_tokens: int = 64
    stop: Sequence[int] = ()
    seed: int = 0
    detokenizer: Detokenizer | None = None
    source: Sequence[int] | Memory | None = None
    image: Tensor | None = None
    shared: int = 0
    top: int = 0
    score_prompt: bool = False
    cache_key: str = ""

    def __post_init__(self) -> None:
        # What is asked for must not change while it waits.
        if isinstance(self.source, Tensor) and (self.source.is_floating_point() or self.source.dim() != 1):
            raise WeftError("an engine reads tokens: encode vectors and images first, source=model.encode(...)")
        for name in ("prompt", "stop", "source"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, Memory):
                object.__setattr__(self, name, tuple(int(token) for token in value))

    @property
    def source_length(self) -> int:
        """Number of source tokens."""
        if self.source is None:
            return 0
        return self.source.hidden.shape[1] if isinstance(self.source, Memory) else len(self.source)

    def expect_fit(self, declaration: Declaration, length: int, source_length: int) -> None:
        """Refuse what this model or this engine cannot do, before anything is computed."""
        if not self.prompt or self.max_tokens < (0 if self.score_prompt else 1):
            raise WeftError(
                "a prompt of at least one token and max_tokens of at least 1 are needed to generate; 0 are enough with "
                "score_prompt"
            )
        if self.top < 0:
            raise WeftError(f"top {self.top} is not a number of tokens: use 0 (none) or more")
        least, most, vocabulary = min(self.prompt), max(self.prompt), declaration.vocabulary or 0
        if least < 0 or most >= vocabulary:
            worst = least if least < 0 else most
            raise WeftError(f"token {worst}, but the vocabulary has 0 to {vocabulary - 1}: check the tokenizer")
        # The last token generated is never read.
        if len(self.prompt) + max(self.max_tokens - 1, 0) > length:
            raise LengthError(
                f"a prompt of {len(self.prompt)} tokens and {self.max_tokens} new ones, but this engine holds {length} "
                "per text: give fewer, or make an engine of larger `length`"
            )
        if not 0 <= self.shared <= len(self.prompt):
            raise WeftError(f"{self.shared} shared tokens of a prompt of {len(self.prompt)}: share 0 to all of them")
        self._expect_conditions(declaration, source_length)

    def _expect_conditions(self, declaration: Declaration, source_length: int) -> None:
        family = f"a model of family {declaration.family!r}"
        if declaration.seq2seq and self.source is None:
            raise WeftError(f"{family} generates from a source: give `source`")
        if not declaration.seq2seq and self.source is not None:
            raise WeftError(f"{family} reads no source: leave `source` out")
        if self.image is not None and declaration.prefix is None:
            raise WeftError(f"{family} sees no images: leave `image` out")
        if self.image is not None and self.image.dim() != 3:
            shape = tuple(self.image.shape)
            raise WeftError(f"an image is [channels, height, width], not {shape}: give one per request")
        if isinstance(self.source, Memory) and self.source.hidden.shape[0] != 1:
            raise WeftError(f"a memory of {self.source.hidden.shape[0]} rows: give one row per request")
        if declaration.seq2seq and not 1 <= self.source_length <= source_length:
            raise LengthError(
                f"a source of {self.source_length} tokens, but this engine takes 1 to {source_length}: "
                "give fewer, or make an engine of larger `source_length`"
            )
