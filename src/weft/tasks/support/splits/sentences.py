"""Sentences as data: rows of words or tokens with one answer each, or one answer per word."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from weft.data.batching import batches_by_length, groups_of_like_length
from weft.data.tokenizers.lexicon import UNKNOWN_WORD, Lexicon
from weft.foundation.numerics import widen
from weft.models.output import Output
from weft.models.teacher_forcing import IGNORED
from weft.parts.masks import Graph, Mask, Real
from weft.tasks.support.splits.augmentation import own_random
from weft.tasks.support.splits.split import same_text
from weft.tasks.task import Batch, Split

Numbers = NDArray[np.int64]


@dataclass(frozen=True)
class Hiding:
    """What is hidden in training: a `share` of all tokens, and rare ones more often, the less they can be relied on.

    A token seen n times is hidden with chance share + (1 - share) rarity / (rarity + n); its characters too if `blind`.
    """

    share: float = 0.0
    rarity: float = 0.0
    blind: bool = False

    def chances(self, counts: NDArray[np.float64]) -> NDArray[np.float32]:
        """For tokens seen so often."""
        rare = self.rarity / np.maximum(self.rarity + counts, 1e-9)
        return (self.share + (1 - self.share) * rare).astype(np.float32)


@dataclass(frozen=True)
class Forms:
    """Every different token of a split once, as what the model takes: [F] tokens, or [F, 1 + L] words with characters.

    `hidden` is the chance that a token is taken for an unknown one in training, so that the model learns to do without
    it; of words that are hidden, the characters stay unless `blind`.
    """

    numbers: Numbers
    hidden: NDArray[np.float32]
    unknown: int = UNKNOWN_WORD
    blind: bool = False

    def look_up(self, places: Numbers, drawn: NDArray[np.float64] | None) -> Tensor:
        """[B, T] -> [B, T] or [B, T, 1 + L], as many characters as the longest word here has.

        `drawn`: a random number for each token, which is hidden if its chance is larger.
        """
        found = self.numbers[places]
        lost = None if drawn is None else drawn < self.hidden[places]
        if found.ndim == 2:
            return torch.from_numpy(found if lost is None else np.where(lost, self.unknown, found))
        used = int((found[..., 1:] > 0).any((0, 1)).sum())
        found = found[..., : 1 + max(1, used)].copy()
        if lost is not None:
            found[..., 0][lost] = self.unknown
            if self.blind:
                found[..., 1:][lost] = 0
        return torch.from_numpy(found)


@dataclass(frozen=True)
class Sentences(Split):
    """Rows of places in `forms`; a row's labels are one number for the whole, or where `tagged` one per token.

    `texts` is what the rows were made from: texts, or the words of each sentence. The last `tail` tokens of a row stay
    when it is cut.
    """

    forms: Forms
    rows: tuple[Numbers, ...]
    labels: tuple[Numbers, ...]
    texts: tuple[Any, ...]
    tagged: bool
    tail: int = 0

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def lengths(self) -> list[int]:
        """Tokens per row."""
        return [len(row) for row in self.rows]

    @property
    def tokens(self) -> int:
        """Tokens of all rows."""
        return sum(self.lengths)

    def identities(self) -> Iterator[tuple[Hashable, str]]:
        """The texts themselves."""
        for text in self.texts:
            shown = text if isinstance(text, str) else " ".join(map(str, text))
            yield same_text(shown), shown

    def example_lengths(self) -> tuple[str, Sequence[int]]:
        return "tokens", self.lengths

    def class_numbers(self) -> Numbers:
        numbers = np.concatenate(self.labels)
        return numbers[numbers != IGNORED]

    def answers(self, example: int) -> Numbers:
        """The labels of an example, without those of tokens that have none."""
        return self.labels[example][self.labels[example] != IGNORED]

    def cut(self, length: int) -> Sentences:
        """Longer rows: their first `length` tokens, or with an answer per token, one piece after the other."""
        if max(self.lengths) <= length:
            return self
        if not self.tagged:
            return replace(self, rows=tuple(_shortened(row, length, self.tail) for row in self.rows))
        pieces = [
            (row[first : first + length], label[first : first + length], text[first : first + length])
            for row, label, text in zip(self.rows, self.labels, self.texts, strict=True)
            for first in range(0, len(row), length)
        ]
        rows, labels, texts = zip(*pieces, strict=True)
        return replace(self, rows=rows, labels=labels, texts=texts)

    def pick(self, numbers: Sequence[int]) -> Sentences:
        """The same with these rows alone."""
        rows, labels, texts = (tuple(field[n] for n in numbers) for field in (self.rows, self.labels, self.texts))
        return replace(self, rows=cast(Any, rows), labels=cast(Any, labels), texts=texts)

    def batches(self, size: int, seed: int | None, epoch: int = 0) -> Sequence[Sequence[int]]:
        """Rows of like length together; a batch holds `size` tokens with padding, or the one longest row."""
        lengths = self.lengths
        return batches_by_length(lengths, max(size, *lengths, 1), 0 if seed is None else seed, epoch)

    def batch(self, examples: Sequence[int], seed: int | None = None, epoch: int = 0) -> Batch:
        """Tokens with padding on the right; in training some are hidden, others in every epoch."""
        rows = [self.rows[number] for number in examples]
        lengths = torch.tensor([len(row) for row in rows])
        width = int(lengths.max())
        places = np.zeros((len(rows), width), dtype=np.int64)
        labels = np.full((len(rows), width) if self.tagged else len(rows), IGNORED, dtype=np.int64)
        for number, (row, example) in enumerate(zip(rows, examples, strict=True)):
            places[number, : len(row)] = row
            if self.tagged:
                labels[number, : len(row)] = self.labels[example]
            else:
                labels[number] = self.labels[example][0]
        drawn = None
        if seed is not None and self.forms.hidden.any():
            drawn = np.ones(places.shape)
            for number, (row, example) in enumerate(zip(rows, examples, strict=True)):
                drawn[number, : len(row)] = own_random(seed, epoch, int(example)).random(len(row))
        tokens = self.forms.look_up(places, drawn)
        count = int((labels != IGNORED).sum())
        real = torch.arange(width) < lengths[:, None]
        return Batch({"tokens": tokens, "mask": real}, torch.from_numpy(labels), count, places.size)


def _shortened(row: Numbers, length: int, tail: int) -> Numbers:
    """The first tokens of a row, and its last `tail` ones."""
    if len(row) <= length:
        return row
    return np.concatenate((row[: length - tail], row[len(row) - tail :]))


def words_split(
    lexicon: Lexicon,
    sentences: Sequence[Sequence[str]],
    labels: Sequence[Numbers],
    texts: Sequence[Any],
    tagged: bool,
    hiding: Hiding | None = None,
) -> Sentences:
    """Sentences of words as a split."""
    forms: dict[str, int] = {}
    counts: list[int] = []
    rows = []
    for words in sentences:
        row = np.empty(len(words), dtype=np.int64)
        for place, word in enumerate(words):
            number = forms.setdefault(word, len(forms))
            if number == len(counts):
                counts.append(0)
            counts[number] += 1
            row[place] = number
        rows.append(row)
    hiding = hiding or Hiding()
    hidden = hiding.chances(_by_word(list(forms), counts))
    table = Forms(lexicon.encode(list(forms)), hidden, blind=hiding.blind)
    return Sentences(table, tuple(rows), tuple(labels), tuple(texts), tagged)


def _by_word(forms: Sequence[str], counts: Sequence[int]) -> NDArray[np.float64]:
    """How often each form was seen, its other spellings with small and large letters included."""
    words: dict[str, int] = {}
    for form, count in zip(forms, counts, strict=True):
        words[form.lower()] = words.get(form.lower(), 0) + count
    return np.array([words[form.lower()] for form in forms], dtype=np.float64)


def ask(module: nn.Module, batch: Batch) -> Output:
    """The model's answer to a batch; padding is hidden, and a graph's nodes see their neighbors alone."""
    inputs = batch.inputs
    mask: Mask = Real(inputs["mask"])
    if "edges" in inputs:
        mask = mask & Graph(inputs["edges"])
    return module(inputs["tokens"], mask=mask)


def probabilities(module: nn.Module, split: Split, size: int, temperature: float = 1.0) -> list[Tensor]:
    """softmax(logits / temperature) of each example [C], or of each token [T, C]; in evaluation mode, on the CPU."""
    device = next(module.parameters()).device
    training = module.training
    module.eval()
    found: dict[int, Tensor] = {}
    with torch.inference_mode():
        like = groups_of_like_length(split.lengths, size, device) if isinstance(split, Sentences) else None
        for examples in split.batches(size, None) if like is None else like:
            batch = split.batch(examples).to(device)
            shares = (widen(ask(module, batch).logits) / temperature).softmax(-1).cpu()
            lengths = batch.inputs["mask"].sum(1).tolist()
            for row, example in enumerate(examples):
                found[example] = shares[row] if shares.dim() == 2 else shares[row, : lengths[row]]
    module.train(training)
    return [found[example] for example in sorted(found)]
