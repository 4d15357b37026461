"""A lexicon: the words and characters of training texts, and a word as the ids that a model takes.

A word is (w, c_1 .. c_L): its id in the lexicon, in lower case, and the ids of its characters as written, between a
start and an end mark. Words that are not in the lexicon share one id and keep their characters.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.data.readers.files import DataError

UNKNOWN_WORD = 0  # a word's id
PADDING, UNKNOWN_CHARACTER, WORD_START, WORD_END = range(4)  # ids of characters; real characters follow
LONGEST_WORD = 18
WORD_PATTERN = re.compile(r"['’]\w{1,2}\b|\w+(?:['’]\w+)*|[^\w\s]")
CLITIC_PATTERN = re.compile(r"(?i)(?<=\w)(?:n['’]t|['’](?:s|m|d|re|ve|ll))$")


@dataclass(frozen=True)
class Lexicon:
    """Words in lower case and characters, most frequent first; `longest` is the maximum of characters per word."""

    words: tuple[str, ...]
    characters: tuple[str, ...]
    longest: int = LONGEST_WORD
    _words: dict[str, int] = field(init=False, repr=False, compare=False)
    _characters: dict[str, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_words", {word: number for number, word in enumerate(self.words, UNKNOWN_WORD + 1)})
        object.__setattr__(self, "_characters", {c: number for number, c in enumerate(self.characters, WORD_END + 1)})

    @classmethod
    def learn(cls, sentences: Iterable[Sequence[str]], vocabulary: int, longest: int = LONGEST_WORD) -> Lexicon:
        """The most frequent words of sentences, at most `vocabulary`, and all characters seen more than once."""
        forms = Counter(word for words in sentences for word in words)
        words: Counter[str] = Counter()
        characters: Counter[str] = Counter()
        for form, times in forms.items():
            words[form.lower()] += times
            for character in form:
                characters[character] += times
        if not words:
            raise DataError("there is no word to learn from: give texts that are not blank")
        ranked = sorted(words, key=lambda word: (-words[word], word))
        letters = sorted(characters, key=lambda letter: (-characters[letter], letter))
        return cls(tuple(ranked[:vocabulary]), tuple(c for c in letters if characters[c] > 1), longest)

    @property
    def vocabulary(self) -> int:
        """Number of word ids."""
        return len(self.words) + UNKNOWN_WORD + 1

    @property
    def alphabet(self) -> int:
        """Number of character ids."""
        return len(self.characters) + WORD_END + 1

    def __contains__(self, word: object) -> bool:
        return isinstance(word, str) and word.lower() in self._words

    def encode(self, words: Sequence[str]) -> NDArray[np.int64]:
        """[T, 1 + L]; of a long word the first and last characters are kept."""
        rows = np.zeros((len(words), 1 + self.longest), dtype=np.int64)
        for row, word in zip(rows, words, strict=True):
            row[0] = self._words.get(word.lower(), UNKNOWN_WORD)
            inner = [self._characters.get(c, UNKNOWN_CHARACTER) for c in shorten_word(word, self.longest - 2)]
            row[1 : 3 + len(inner)] = (WORD_START, *inner, WORD_END)
        return rows

    def to_tree(self) -> dict[str, Any]:
        """As plain JSON, for the run's spec."""
        return {"words": list(self.words), "characters": "".join(self.characters), "longest": self.longest}

    @classmethod
    def from_tree(cls, tree: dict[str, Any]) -> Lexicon:
        return cls(tuple(tree["words"]), tuple(tree["characters"]), int(tree["longest"]))


def shorten_word(word: str, most: int) -> str:
    """At most `most` characters of a word: its first and its last ones."""
    return word if len(word) <= most else word[: most // 2] + word[len(word) - (most - most // 2) :]


def split_words(text: str) -> list[str]:
    """Words and punctuation of a text: `it 's good, isn't it?` has it, 's, good, ",", isn't, it, ?."""
    return WORD_PATTERN.findall(text)


def split_treebank_words(text: str, known: Container[str]) -> list[str]:
    """Words as treebanks split them: known strings between blanks stay whole, others lose their punctuation.

    Endings such as n't and 's are words of their own if the lexicon has them.
    """
    found: list[str] = []
    for chunk in text.split():
        if chunk in known:
            found.append(chunk)
            continue
        for piece in WORD_PATTERN.findall(chunk):
            ending = None if piece in known else CLITIC_PATTERN.search(piece)
            if ending is not None and ending.group() in known:
                found += [piece[: ending.start()], ending.group()]
            else:
                found.append(piece)
    return found
