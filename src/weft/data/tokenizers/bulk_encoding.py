"""Bulk encoding: the ids that a tokenizer gives, as arrays, by table look-up where the tokenizer allows it.

Characters and bytes are looked up in a table. Byte-level BPE and words always split before the last space or line end
in front of a word, so each unit between is encoded once and then looked up. All others are encoded by the tokenizers
package, in parallel.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from weft.data.stores.text_chunks import count_bytes
from weft.data.tokenizers.tokenizer import Tokenizer, explain_failure, train_tokenizer
from weft.data.tokenizers.vocabulary_files import byte_letters

UNIT_BOUNDARY = re.compile(r"(?=[ \n][^\W_])")
SPACE_INSIDE, LINE_END_BEFORE = re.compile(r" (?![^\W_])"), re.compile(r"\n(?=[^\W_])")
NO_SPACE = "\0"  # stands for a space inside a unit while a text is split at the others
MAX_UNITS, MAX_UNIT_CHARACTERS = (
    300_000,
    20_000_000,
)  # how much the look-up of units may hold


class EncodedTexts(NamedTuple):
    """Ids of many texts, concatenated, and the number of ids per text."""

    flat: NDArray[np.uint32]
    counts: NDArray[np.int64]


BulkEncoder = Callable[[Sequence[str]], EncodedTexts]


def bulk_encoder(tokenizer: Tokenizer) -> BulkEncoder:
    """The fastest function that gives the ids of `tokenizer.encode`."""
    layout = json.loads(tokenizer.engine.to_str())
    model, added = layout["model"], layout["added_tokens"]
    plain = layout["normalizer"] is None and not any(
        token[flag] for token in added for flag in ("single_word", "lstrip", "rstrip", "normalized")
    )
    kinds = [kind for kind in ("characters", "bytes", "words") if layout["pre_tokenizer"] == _steps(kind)]
    if plain and kinds:
        specials = {token["content"]: int(token["id"]) for token in added}
        if kinds == ["characters"] and model["type"] == "WordLevel" and model["unk_token"] in model["vocab"]:
            return _character_table(model["vocab"], model["unk_token"], specials)
        if kinds == ["bytes"] and _settings(model) == _byte_settings() and set(byte_letters()) <= model["vocab"].keys():
            return _Table([model["vocab"][letter] for letter in byte_letters()], "utf-8", np.uint8, specials)
        parted = all(name and not name[0].isalnum() and not set(" \n") & set(name) for name in specials)
        if kinds != ["characters"] and not model.get("dropout") and parted:
            return _Units(tokenizer)
    return lambda texts: _encode(tokenizer, texts)


def adds_dummy_prefix(tokenizer: Tokenizer) -> bool:
    """Whether the tokenizer puts a space before each text (SentencePiece): a chunk must not begin with another."""
    whole, parts = tokenizer.encode("a b"), tokenizer.encode_many(["a", " b", "b"])
    return whole != parts[0] + parts[1] and whole == parts[0] + parts[2]


def _encode(tokenizer: Tokenizer, texts: Sequence[str]) -> EncodedTexts:
    try:
        found = [e.ids for e in tokenizer.engine.encode_batch_fast(list(texts), add_special_tokens=False)]
    except BaseException as error:
        raise explain_failure(error, "the tokenizer fails at one of the texts") from None
    counts = np.fromiter(map(len, found), np.int64, len(found))
    return EncodedTexts(np.fromiter(chain.from_iterable(found), np.uint32, int(counts.sum())), counts)


@cache
def _steps(kind: Any) -> Any:
    """The pre-tokenizer of that kind of tokenizer."""
    return json.loads(train_tokenizer(kind, ["a"]).engine.to_str())["pre_tokenizer"]


@cache
def _byte_settings() -> dict[str, Any]:
    return _settings(json.loads(train_tokenizer("bytes", []).engine.to_str())["model"])


def _settings(model: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in model.items() if name != "vocab"}


def _character_table(vocabulary: dict[str, int], unknown: str, specials: dict[str, int]) -> _Table:
    table = np.full(0x110000, vocabulary[unknown], np.uint32)
    for token, index in vocabulary.items():
        if len(token) == 1:
            table[ord(token)] = index
    return _Table(table, "utf-32-le", np.uint32, specials)


class _Table:
    """An id per code unit; special tokens are found first, the longest at each position."""

    def __init__(self, table: Any, codec: str, unit: type, specials: dict[str, int]) -> None:
        self.table = np.asarray(table, np.uint32)
        self.codec, self.unit, self.specials = codec, unit, specials
        longest_first = sorted(specials, key=len, reverse=True)
        self.pattern = re.compile("(" + "|".join(map(re.escape, longest_first)) + ")") if specials else None

    def __call__(self, texts: Sequence[str]) -> EncodedTexts:
        whole = "".join(texts)
        if any(name in whole for name in self.specials):
            parts = [self._with_specials(text) for text in texts]
            return EncodedTexts(np.concatenate(parts), np.array([len(part) for part in parts], np.int64))
        count = count_bytes if self.codec == "utf-8" else len
        return EncodedTexts(self._look_up(whole), np.array([count(text) for text in texts], np.int64))

    def _look_up(self, text: str) -> NDArray[np.uint32]:
        return self.table[np.frombuffer(text.encode(self.codec), self.unit)]

    def _with_specials(self, text: str) -> NDArray[np.uint32]:
        assert self.pattern is not None
        found = [
            np.array([self.specials[part]], np.uint32) if place % 2 else self._look_up(part)
            for place, part in enumerate(self.pattern.split(text))
        ]
        return np.concatenate(found)


def _split_units(text: str) -> list[str]:
    """The parts of `UNIT_BOUNDARY.split(text)` as keys, which cost a third of the time: see `_unit_of`.

    Spaces inside of units are hidden first, so that the rest can be split at plain spaces.
    """
    if NO_SPACE in text:
        return [" " + unit for unit in UNIT_BOUNDARY.split(text)]
    hidden = SPACE_INSIDE.sub(NO_SPACE, text)
    first, *others = LINE_END_BEFORE.sub(" \n", hidden).split(" ")
    return [" " + first.replace(NO_SPACE, " "), *others]


def _unit_of(key: str) -> str:
    """The text of a key: what follows the mark " " as it is; else with its line end, or with the space split off."""
    if key[:1] == " ":
        return key[1:]
    return (key if key[:1] == "\n" else " " + key).replace(NO_SPACE, " ")


class _Numbers(dict[str, int]):
    """Keys of units numbered in order of appearance; new ones are listed."""

    def __init__(self) -> None:
        super().__init__()
        self.fresh: list[str] = []

    def __missing__(self, unit: str) -> int:
        self[unit] = number = len(self)
        self.fresh.append(unit)
        return number


@dataclass
class _Units:
    """Each unit (a word with the space before and the punctuation after it) is encoded when it first appears."""

    tokenizer: Tokenizer

    def __post_init__(self) -> None:
        self._forget()

    def _forget(self) -> None:
        self.numbers, self.characters = _Numbers(), 0
        self.flat = np.zeros(0, np.uint32)
        self.starts, self.counts = np.zeros(0, np.int64), np.zeros(0, np.int64)

    def __call__(self, texts: Sequence[str]) -> EncodedTexts:
        if len(self.numbers) > MAX_UNITS or self.characters > MAX_UNIT_CHARACTERS:
            self._forget()
        units = [_split_units(text) for text in texts]
        sizes = np.fromiter(map(len, units), np.int64, len(units))
        numbers = np.fromiter(map(self.numbers.__getitem__, chain.from_iterable(units)), np.int64, int(sizes.sum()))
        self._learn()
        counts = self.counts[numbers]
        ends = np.cumsum(counts)
        places = np.repeat(self.starts[numbers] - (ends - counts), counts) + np.arange(counts.sum())
        return EncodedTexts(self.flat[places], np.add.reduceat(counts, np.cumsum(sizes) - sizes))

    def _learn(self) -> None:
        fresh = [_unit_of(key) for key in self.numbers.fresh]
        if fresh:
            new = _encode(self.tokenizer, fresh)
            starts = len(self.flat) + np.cumsum(new.counts) - new.counts
            self.flat = np.concatenate([self.flat, new.flat])
            self.starts, self.counts = np.append(self.starts, starts), np.append(self.counts, new.counts)
            self.characters += sum(map(len, fresh))
            self.numbers.fresh = []
