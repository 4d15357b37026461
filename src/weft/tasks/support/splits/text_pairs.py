"""Pairs of texts as data: a source and a target each, in tokens, in batches of like length."""

from __future__ import annotations

import math
import re
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, cast

import numpy as np
import torch
from numpy.typing import NDArray

from weft.data.batching import pad_rows, shuffled_order
from weft.data.readers.files import DataError
from weft.data.tokenizers.tokenizer import TOKENIZER_KINDS, Tokenizer, load_tokenizer, train_tokenizer
from weft.foundation.errors import WeftError
from weft.foundation.seeds import generator
from weft.foundation.spec import Tree
from weft.models.teacher_forcing import IGNORED, teacher_forcing
from weft.parts.masks import Real
from weft.tasks.support.splits.split import same_text
from weft.tasks.task import Batch, Split

Pairs = Sequence[tuple[str, str]]

# Batches hold lengths that differ by about so much, so that their neighbors change from epoch to epoch.
BLUR = 0.15
# Letters are the better tokens for short texts of few words, such as dates.
SHORT, FEW_WORDS = 40, 1000
LETTERS_A_PIECE, LEAST_PIECES, MOST_PIECES = 640, 512, 16384


@dataclass(frozen=True)
class Ends:
    """The ids around a text: its start, its stop, and what fills rows up.

    A model from elsewhere may want ids `before` each source and as the `first` of each target, and some `forbidden`.
    """

    start: int
    stop: int
    pad: int
    before: tuple[int, ...] = ()
    first: tuple[int, ...] = ()
    forbidden: tuple[int, ...] = ()

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> Ends:
        """A tokenizer's own; one without them cannot say where an answer ends."""
        if tokenizer.stop is None:
            raise WeftError("this tokenizer has no stop token, so answers would never end: use auto, words or bpe")
        start = tokenizer.start if tokenizer.start is not None else tokenizer.stop
        return cls(start, tokenizer.stop, tokenizer.pad)

    @classmethod
    def from_tree(cls, facts: Tree) -> Ends | None:
        """Those of an imported run, from its facts."""
        if "ends" not in facts:
            return None
        before, first, forbidden = facts["before"]["source"], facts["before"]["target"], facts["forbidden"]
        return cls(**facts["ends"], before=tuple(before), first=tuple(first), forbidden=tuple(forbidden))

    def to_tree(self) -> Tree:
        return {
            "ends": {"start": self.start, "stop": self.stop, "pad": self.pad},
            "before": {"source": list(self.before), "target": list(self.first)},
            "forbidden": list(self.forbidden),
        }


@dataclass(frozen=True)
class PairsSplit(Split):
    """Pairs in tokens; sources end with the stop token, targets are told from the start token to the stop token.

    What is longer than `length` is cut: a source loses its end, a target that was cut has no stop token to learn.
    `decoded` bounds how many sources are translated when the split is evaluated.
    """

    identified: ClassVar[str] = "sources"
    pairs: Pairs
    sources: Sequence[Sequence[int]]
    targets: Sequence[Sequence[int]]
    ends: Ends
    length: int | None = None
    decoded: int | None = None
    _sizes: list[tuple[int, int]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        most = self.length if self.length is not None else 1 << 60
        rows = zip(self.sources, self.targets, strict=True)
        sizes = [(min(len(source) + 1, most), min(len(target) + 1, most)) for source, target in rows]
        object.__setattr__(self, "_sizes", sizes)

    def __len__(self) -> int:
        return len(self.pairs)

    @property
    def tokens(self) -> int:
        """Tokens of sources and targets."""
        return sum(s + t for s, t in self._sizes)

    @property
    def too_long(self) -> int:
        """How many pairs are cut."""
        if self.length is None:
            return 0
        return sum(max(len(s), len(t)) + 1 > self.length for s, t in zip(self.sources, self.targets, strict=True))

    def cut(self, length: int) -> PairsSplit:
        """The same for a model of `length` tokens per side."""
        return replace(self, length=length)

    def identities(self) -> Iterator[tuple[Hashable, str]]:
        """The sources: one that was learned is no longer new, whatever its target."""
        for source, _ in self.pairs:
            yield same_text(source), source

    def example_lengths(self) -> tuple[str, Sequence[int]]:
        return "tokens of the source", [len(source) for source in self.sources]

    def pick(self, numbers: Sequence[int]) -> PairsSplit:
        """The same with these pairs alone."""
        pairs, sources, targets = ([field[n] for n in numbers] for field in (self.pairs, self.sources, self.targets))
        return replace(self, pairs=cast(Any, pairs), sources=cast(Any, sources), targets=cast(Any, targets))

    def source(self, example: int) -> list[int]:
        """A source as the model reads it: cut to the length, the stop token at its end."""
        return [*self.sources[example][: self._sizes[example][0] - 1], self.ends.stop]

    def batches(self, size: int, seed: int | None, epoch: int = 0) -> Sequence[Sequence[int]]:
        """Pairs of like length, about `size` tokens per batch; with a seed in random order, mixed anew."""
        return like_length(np.array(self._sizes), size, seed, epoch)

    def batch(self, examples: Sequence[int], seed: int | None = None, epoch: int = 0) -> Batch:
        """Source [B, S], target [B, T] from the start token on, and labels [B, T] up to the stop token.

        The target's padding is on the right, where a causal decoder never looks: only the source's needs a mask.
        """
        sources = pad_rows([self.source(example) for example in examples], self.ends.pad)
        forced = teacher_forcing(
            [self.targets[example] for example in examples], self.ends.start, self.ends.stop, self.ends.pad
        )
        target, labels = forced.inputs[:, : self.length], forced.labels[:, : self.length]
        real = torch.arange(sources.tokens.shape[1]) < sources.lengths[:, None]
        inputs: dict[str, object] = {"source": sources.tokens, "target": target}
        if not bool(real.all()):
            inputs["source_real"] = real
        count = int((labels != IGNORED).sum())
        return Batch(inputs, labels, count, sources.tokens.numel() + target.numel())


def like_length(sizes: NDArray[np.int64], size: int, seed: int | None, epoch: int) -> list[list[int]]:
    """Batches of examples of like length, about `size` tokens each, as many in every epoch; sizes [N, sides].

    With a seed lengths are blurred a little, so that neighbors change, and batches come in random order.
    """
    key = sizes.max(1) + 0.001 * sizes.sum(1)
    if seed is not None:
        noise = torch.rand(len(sizes), generator=generator(seed, "lengths", epoch), dtype=torch.float64).numpy()
        key = key * (1 + BLUR * (noise - 0.5))
    order = np.argsort(key, kind="stable")
    total = np.cumsum(sizes.sum(1)[order])
    count = min(len(order), max(1, math.ceil(total[-1] / size)))
    steps = np.arange(1, count)
    ends = np.searchsorted(total, total[-1] / count * steps, side="left") + 1
    # Each batch has at least one example, however long a single one is.
    ends = np.minimum(np.maximum.accumulate(ends - steps) + steps, len(order) - count + steps)
    found = [batch.tolist() for batch in np.split(order, np.maximum(ends, steps))]
    return found if seed is None else [found[place] for place in shuffled_order(count, seed, epoch)]


def evenly(count: int, most: int | None) -> list[int]:
    """All of `count` places, or `most` of them, evenly spread."""
    if most is None or most >= count:
        return list(range(count))
    return [number * count // most for number in range(most)]


def real_mask(real: torch.Tensor | None) -> Real | None:
    """The mask of a row's real tokens; None where all are."""
    return None if real is None else Real(real)


def hold_out(pairs: Pairs, share: float, seed: int) -> tuple[Pairs, Pairs]:
    """(to learn from, held out): a share of the sources, with all targets that each of them has."""
    groups: dict[str, list[int]] = {}
    for number, (source, _) in enumerate(pairs):
        groups.setdefault(source, []).append(number)
    if len(groups) < 2:
        raise DataError(f"{len(groups)} source: training and validation take two or more; give more pairs")
    if not 0 < share < 1:
        raise DataError(f"a held-out share of {share:g}: give one between 0 and 1, or --set data.validation=FILE")
    order = shuffled_order(len(groups), seed, 0)
    count = min(len(groups) - 1, max(1, round(share * len(groups))))
    members = list(groups.values())
    held = {number for place in order[:count] for number in members[place]}
    return (
        [pair for number, pair in enumerate(pairs) if number not in held],
        [pair for number, pair in enumerate(pairs) if number in held],
    )


def learn_tokenizer(kind: str, texts: Sequence[str], vocabulary: int | None) -> Tokenizer:
    """The one asked for, learned from sources and targets together; `auto` chooses what suits them."""
    if kind == "auto":
        kind = _suitable(texts)
    if kind not in TOKENIZER_KINDS:
        return load_tokenizer(kind)
    if vocabulary is None:
        pieces = sum(map(len, texts)) // LETTERS_A_PIECE // 128 * 128
        vocabulary = min(MOST_PIECES, max(LEAST_PIECES, pieces)) if kind == "bpe" else MOST_PIECES
    return train_tokenizer(kind, texts, vocabulary)


def _suitable(texts: Sequence[str]) -> Literal["characters", "bpe"]:
    if sum(map(len, texts)) > SHORT * len(texts):
        return "bpe"
    words: set[str] = set()
    for text in texts:
        words.update(re.findall(r"\w+", text.lower()))
        if len(words) > FEW_WORDS:
            return "bpe"
    return "characters"
