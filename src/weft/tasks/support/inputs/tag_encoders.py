"""How sentences become what a tagger reads: words with their characters, or the pieces of a tokenizer.

Of a word in pieces the first one's state gives the tag: p(tag | word) = softmax(W h_first + b) (Devlin et al. 2019).
"""

from __future__ import annotations

import bisect
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate

import numpy as np

from weft.data.tokenizers.lexicon import Lexicon, split_treebank_words
from weft.data.tokenizers.tokenizer import TOKENIZER_KINDS, Tokenizer, load_tokenizer, train_tokenizer
from weft.foundation.errors import WeftError
from weft.foundation.spec import Tree
from weft.models.encoder import EncoderSpec, PerTokenSpec, TokensSpec, WordsSpec
from weft.models.teacher_forcing import IGNORED
from weft.tasks.support.language.prompt_format import Frame
from weft.tasks.support.splits.sentences import Forms, Hiding, Numbers, Sentences, words_split

Words = Sequence[str]


class TagEncoder(ABC):
    """What was learned about words, and the input of an encoder that takes them."""

    tokenizer: Tokenizer | None = None

    @abstractmethod
    def facts(self) -> Tree:
        """What was learned, as plain JSON, but for a tokenizer."""

    @abstractmethod
    def make_split(self, sentences: Sequence[Words], labels: Sequence[Numbers], rarity: float = 0.0) -> Sentences:
        """Sentences with a label per word; those of rare words are hidden in training as `Hiding` says."""

    @abstractmethod
    def fit_spec(self, spec: EncoderSpec, tags: int) -> EncoderSpec:
        """The spec with this input and so many tags."""

    @abstractmethod
    def split(self, text: str) -> list[str]:
        """The words of a text."""


@dataclass(frozen=True)
class WordTagEncoder(TagEncoder):
    """Words with their characters."""

    lexicon: Lexicon

    def facts(self) -> Tree:
        return {"lexicon": self.lexicon.to_tree()}

    def make_split(self, sentences: Sequence[Words], labels: Sequence[Numbers], rarity: float = 0.0) -> Sentences:
        """One token per word."""
        return words_split(self.lexicon, sentences, labels, sentences, tagged=True, hiding=Hiding(rarity=rarity))

    def fit_spec(self, spec: EncoderSpec, tags: int) -> EncoderSpec:
        """Words in, one tag per word out."""
        lexicon = self.lexicon
        words = WordsSpec(vocabulary=lexicon.vocabulary, characters=lexicon.alphabet, longest=lexicon.longest)
        if isinstance(spec.input, WordsSpec):
            words = words.replace(character_width=spec.input.character_width, kernel=spec.input.kernel)
        return spec.replace(input=words, output=PerTokenSpec(classes=tags))

    def split(self, text: str) -> list[str]:
        """Separated as in the sentences that were learned from."""
        return split_treebank_words(text, self.lexicon)


@dataclass(frozen=True)
class PieceTagEncoder(TagEncoder):
    """The pieces of a tokenizer, in the frame that its model expects around each sentence."""

    tokenizer: Tokenizer
    frame: Frame = field(default_factory=Frame)

    def facts(self) -> Tree:
        """The ids around each sentence."""
        return self.frame.to_tree()

    def make_split(self, sentences: Sequence[Words], labels: Sequence[Numbers], rarity: float = 0.0) -> Sentences:
        """The label of a word stands at its first piece; its other pieces and the frame have none."""
        unknown = self.tokenizer.role("unknown") or 0
        rows, marks = [], []
        for pieces, numbers in zip(self._pieces(sentences), labels, strict=True):
            pieces = [ids or [unknown] for ids in pieces]
            rows.append(np.array(self.frame.put([number for ids in pieces for number in ids]), dtype=np.int64))
            mark = np.full(len(rows[-1]), IGNORED, dtype=np.int64)
            mark[len(self.frame.before) + np.cumsum([0, *map(len, pieces[:-1])])] = numbers
            marks.append(mark)
        counts = np.bincount(np.concatenate(rows), minlength=self.tokenizer.vocabulary).astype(np.float64)
        forms = Forms(np.arange(len(counts)), Hiding(rarity=rarity).chances(counts), unknown)
        return Pieces(forms, tuple(rows), tuple(marks), tuple(sentences), tagged=True, frame=self.frame)

    def _pieces(self, sentences: Sequence[Words]) -> Iterator[list[list[int]]]:
        """The ids of each word of each sentence, as it stands there between blanks."""
        texts = [" ".join(words) for words in sentences]
        for words, found in zip(sentences, self.tokenizer.encode_many_with_places(texts), strict=True):
            starts = [0, *accumulate(len(word) + 1 for word in words)][:-1]
            pieces: list[list[int]] = [[] for _ in words]
            for number, (first, last) in zip(found.ids, found.offsets, strict=True):
                # A piece may begin with the blank before its word, so its end tells which word it is of.
                pieces[bisect.bisect_right(starts, max(first, last - 1)) - 1].append(number)
            yield pieces

    def fit_spec(self, spec: EncoderSpec, tags: int) -> EncoderSpec:
        """Tokens in, one tag per token out."""
        segments = spec.input.segments if isinstance(spec.input, TokensSpec) else None
        tokens = TokensSpec(vocabulary=self.tokenizer.vocabulary, segments=segments)
        return spec.replace(input=tokens, output=PerTokenSpec(classes=tags))

    def split(self, text: str) -> list[str]:
        """What stands between blanks, marks apart."""
        return split_treebank_words(text, ())


def learn_tag_encoder(kind: str, sentences: Sequence[Words], vocabulary: int) -> TagEncoder:
    """The encoder asked for, learned from sentences: `auto` takes words with their characters."""
    if kind == "auto":
        return WordTagEncoder(Lexicon.learn(sentences, vocabulary))
    if kind in TOKENIZER_KINDS:
        return PieceTagEncoder(train_tokenizer(kind, [" ".join(words) for words in sentences], vocabulary))
    return PieceTagEncoder(load_tokenizer(kind))


@dataclass(frozen=True)
class Pieces(Sentences):
    """Rows of pieces; a row that is too long is cut between words, and each piece of it has its own frame."""

    frame: Frame = field(default_factory=Frame)

    def cut(self, length: int) -> Sentences:
        """Longer rows, one piece after the other; a word longer than a row loses its end."""
        before, after = self.frame.before, self.frame.after
        room = length - len(before) - len(after)
        if room < 1:
            raise WeftError(f"{length} tokens leave no room for a word beside the {length - room} around each sentence")
        if max(self.lengths) <= length:
            return self
        rows, labels, texts = [], [], []
        for row, label, words in zip(self.rows, self.labels, self.texts, strict=True):
            starts = np.flatnonzero(label != IGNORED).tolist()
            ends = [*starts[1:], len(row) - len(after)]
            for first, last in _between_words(starts, ends, room):
                piece = slice(starts[first], min(ends[last - 1], starts[first] + room))
                rows.append(np.array([*before, *row[piece], *after], dtype=np.int64))
                labels.append(np.pad(label[piece], (len(before), len(after)), constant_values=IGNORED))
                texts.append(tuple(words[first:last]))
        return replace(self, rows=tuple(rows), labels=tuple(labels), texts=tuple(texts))


def _between_words(starts: Sequence[int], ends: Sequence[int], room: int) -> Iterator[tuple[int, int]]:
    """(first word, first word after) of cuts of at most `room` tokens, or one long word."""
    first = 0
    while first < len(starts):
        last = max(first + 1, bisect.bisect_right(ends, starts[first] + room))
        yield first, last
        first = last
