"""Prefix cache: beginnings that prompts share (an instruction, a chat so far) are computed once and kept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from weft.inference.engine.reading import ReadingGrid
from weft.inference.engine.requests import EngineRequest
from weft.inference.engine.slots import SlotCopy


class CachedPrefix(NamedTuple):
    """A prefix and its state; an image before it is a part of it. `named`: a request said that it is shared."""

    tokens: Sequence[int]
    image: Tensor | None
    copied: SlotCopy
    named: bool = False
    cache_key: str = ""

    def match_length(self, request: EngineRequest, grid: ReadingGrid) -> int:
        """Number of first tokens of a prompt that need not be read; the last one always is, for what follows it.

        They end where a piece of the prompt would end, so that what is read is read in the same pieces.
        """
        if request.score_prompt or not self._alike(request):
            return 0
        prompt = request.prompt
        pairs = zip(self.tokens, prompt, strict=False)
        common = next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(self.tokens), len(prompt)))
        common = grid.last_end(min(common, len(prompt) - 1))
        return common if self.copied.cuttable or common == len(self.tokens) else 0

    def covers(self, tokens: Sequence[int], of: EngineRequest | CachedPrefix) -> bool:
        """Whether keeping these first tokens of a request too would add nothing."""
        longer = len(self.tokens) > len(tokens)
        fits = list(self.tokens[: len(tokens)]) == list(tokens) and (self.copied.cuttable or not longer)
        return fits and self._alike(of)

    def _alike(self, other: EngineRequest | CachedPrefix) -> bool:
        return self.cache_key == other.cache_key and _same(self.image, other.image)


class PrefixCache:
    """The `capacity` prefixes that were used last; those that requests named are evicted last.

    Prefixes end on the `grid` on which prompts are read, and were read as prompts: what decoding writes has other bits.
    """

    def __init__(self, capacity: int, grid: ReadingGrid) -> None:
        self.capacity, self.grid = capacity, grid
        self.entries: list[CachedPrefix] = []

    def match_length(self, request: EngineRequest) -> int:
        """Number of tokens of a prompt that need not be read."""
        return max((one.match_length(request, self.grid) for one in self.entries), default=0)

    def find(self, request: EngineRequest) -> tuple[CachedPrefix, int] | None:
        """The longest match, and its number of tokens."""
        best = max(((one.match_length(request, self.grid), n) for n, one in enumerate(self.entries)), default=(0, 0))
        if best[0] == 0:
            return None
        self.entries.append(self.entries.pop(best[1]))
        return self.entries[-1], best[0]

    def ends(self, request: EngineRequest) -> tuple[int, ...]:
        """After how many tokens of a prompt a copy is worth keeping: where it is shared, and as late as can be."""
        return (self.grid.last_end(request.shared), self.grid.last_end(len(request.prompt))) if self.capacity else ()

    def lacks(self, tokens: Sequence[int], request: EngineRequest) -> bool:
        """Whether these first tokens of a request are worth a copy."""
        return self.capacity > 0 and not any(one.covers(tokens, request) for one in self.entries)

    def add(self, new: CachedPrefix) -> None:
        """Keep it, and drop what it covers or what was not used for longest."""
        self.entries = [one for one in self.entries if not new.covers(one.tokens, one)]
        self.entries.append(new)
        while len(self.entries) > self.capacity:
            self.entries.pop(next((n for n, one in enumerate(self.entries) if not one.named), 0))


def _same(a: Tensor | None, b: Tensor | None) -> bool:
    return a is b or (a is not None and b is not None and a.shape == b.shape and torch.equal(a, b))
