"""PrefixCache: the beginnings that texts share (an instruction, a chat so far) are computed once and kept for a while."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from weft.inference.engine.slots import SlotCopy


class CachedPrefix(NamedTuple):
    """A beginning and its state; an image before it is a part of it. `named`: a request said that it is shared."""

    tokens: Sequence[int]
    image: Tensor | None
    copied: SlotCopy
    named: bool = False

    def shares(self, prompt: Sequence[int], image: Tensor | None) -> int:
        """How many of a prompt's first tokens need not be read; its last one always is, for what follows it."""
        if not _same(self.image, image):
            return 0
        pairs = zip(self.tokens, prompt, strict=False)
        common = next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(self.tokens), len(prompt)))
        common = min(common, len(prompt) - 1)
        return common if self.copied.cuts or common == len(self.tokens) else 0

    def covers(self, tokens: Sequence[int], image: Tensor | None) -> bool:
        """Whether keeping these tokens too would add nothing."""
        longer = len(self.tokens) > len(tokens)
        fits = list(self.tokens[: len(tokens)]) == list(tokens) and (self.copied.cuts or not longer)
        return fits and _same(self.image, image)


class PrefixCache:
    """The `most` beginnings that were used last; those that were named go last."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.kept: list[CachedPrefix] = []

    def spares(self, prompt: Sequence[int], image: Tensor | None) -> int:
        """How many tokens of a prompt need not be read."""
        return max((one.shares(prompt, image) for one in self.kept), default=0)

    def find(self, prompt: Sequence[int], image: Tensor | None) -> tuple[CachedPrefix, int] | None:
        """The one that spares most, and how many tokens it spares."""
        best = max(((one.shares(prompt, image), n) for n, one in enumerate(self.kept)), default=(0, 0))
        if best[0] == 0:
            return None
        self.kept.append(self.kept.pop(best[1]))
        return self.kept[-1], best[0]

    def lacks(self, tokens: Sequence[int], image: Tensor | None) -> bool:
        """Whether these tokens are worth a copy."""
        return self.most > 0 and not any(one.covers(tokens, image) for one in self.kept)

    def keep(self, new: CachedPrefix) -> None:
        """Keep it, and leave out what it covers or what was not used for longest."""
        self.kept = [one for one in self.kept if not new.covers(one.tokens, one.image)]
        self.kept.append(new)
        while len(self.kept) > self.most:
            self.kept.pop(next((n for n, one in enumerate(self.kept) if not one.named), 0))


def _same(a: Tensor | None, b: Tensor | None) -> bool:
    return a is b or (a is not None and b is not None and a.shape == b.shape and torch.equal(a, b))
