"""The token store: texts of any size, tokenized once into files, read in windows, never held in memory."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from weft.data.readers.files import DataError
from weft.data.readers.texts import CHAT_TOKENS
from weft.data.stores.prompt_format_protocol import PromptFormatProtocol
from weft.data.stores.store_files import BATCH_CHARACTERS, StoreProgress, make_store, read_store_header, store_name
from weft.data.stores.text_chunks import TextChunk, distinct_characters, has_chats, read_chunks, sample_texts
from weft.data.tokenizers.tokenizer import Tokenizer

__all__ = [
    "CHAT_TOKENS",
    "TextChunk",
    "TokenStore",
    "TokenWindow",
    "distinct_characters",
    "has_chats",
    "open_token_store",
    "read_chunks",
    "sample_texts",
]


class TokenWindow(NamedTuple):
    """Consecutive tokens [T], whether each counts in the loss (None: all do), and each token's document."""

    tokens: NDArray[np.int64]
    answers: NDArray[np.bool_] | None
    documents: NDArray[np.int64]


def open_token_store(
    paths: Sequence[str | Path],
    tokenizer: Tokenizer,
    cache: Path,
    progress: StoreProgress | None = None,
    prompt_format: PromptFormatProtocol | None = None,
) -> TokenStore:
    """The token store of texts, made in `cache` unless it exists; `progress` is called with the bytes read so far.

    `prompt_format`: the start and stop ids and the chat template of the model that reads them.
    """
    folder = cache / store_name(paths, tokenizer, prompt_format)
    header = read_store_header(folder) or make_store(paths, tokenizer, folder, progress, prompt_format)
    return TokenStore(folder, header["type"], header["bytes"], "answers.bin" in header["sizes"], 0, header["tokens"])


@dataclass(frozen=True)
class TokenStore:
    """Tokens `first` to `last` of one long stream in `folder`; nothing is in memory, so workers can receive it."""

    folder: Path
    kind: str
    all_bytes: int
    chats: bool
    first: int
    last: int

    def __len__(self) -> int:
        return self.last - self.first

    @property
    def tokens(self) -> NDArray[np.uint16 | np.uint32]:
        """All tokens, memory-mapped; pages that are touched count as memory, so read long stretches with `window`."""
        return self._map("tokens", self.kind)[self.first : self.last]

    @property
    def answers(self) -> NDArray[np.bool_] | None:
        """Which tokens count in the loss, memory-mapped: the assistant's in chats, no start tokens; None: all."""
        return self._map("answers", "bool")[self.first : self.last] if self.chats else None

    @property
    def starts(self) -> NDArray[np.int64]:
        """Where each document starts; the first at 0, even if it began before this part of the stream."""
        starts = self._map("starts", "int64")
        inside = starts[bisect_right(starts, self.first) - 1 : bisect_left(starts, self.last)]
        return np.maximum(inside - self.first, 0) if self.first else inside

    @property
    def documents(self) -> int:
        starts = self._map("starts", "int64")
        return bisect_left(starts, self.last) - bisect_right(starts, self.first) + 1

    @property
    def counted(self) -> int:
        """Number of tokens that count in the loss."""
        if not self.chats:
            return len(self)
        parts = range(self.first, self.last, BATCH_CHARACTERS)
        return sum(int(self._read("answers", "bool", at, min(BATCH_CHARACTERS, self.last - at)).sum()) for at in parts)

    @property
    def bytes(self) -> int:
        """UTF-8 bytes of the text that counts in the loss; exact at chunk borders, where splits are made."""
        return self._bytes_before(self.last) - self._bytes_before(self.first)

    def slice(self, first: int, last: int) -> TokenStore:
        """The same store restricted to tokens first .. last - 1."""
        if not 0 <= first < last <= len(self):
            raise DataError(f"tokens {first} to {last} of {len(self)}: choose a part with tokens that are there")
        return replace(self, first=self.first + first, last=self.first + last)

    def split(self, share: float = 0.1) -> tuple[TokenStore, TokenStore]:
        """Training and validation: the last `share` of the tokens, from the nearest start of a document.

        Where that would leave training less than half, as with a single document, it is cut between two words.
        """
        if len(self) < 2 or not 0 < share < 1:
            raise DataError(f"{len(self)} tokens cannot be split at a share of {share}: give more text, or a share < 1")
        aim = min(max(round(self.first + len(self) * (1 - share)), self.first + 1), self.last - 1)
        cut = self._nearest("starts", aim)
        if cut is None or 2 * (cut - self.first) < len(self):
            cut = self._nearest("places", aim)
        if cut is None or 2 * (cut - self.first) < len(self):
            cut = aim
        return replace(self, last=cut), replace(self, first=cut)

    def window(self, first: int, length: int) -> TokenWindow:
        """`length` tokens from `first` on, fewer at the end, read from the file; documents are numbered from 0."""
        if not 0 <= first < len(self) or length < 1:
            raise DataError(f"a window of {length} tokens at {first} holds none of the {len(self)}: begin it earlier")
        length = min(length, len(self) - first)
        begin = self.first + first
        tokens = self._read("tokens", self.kind, begin, length).astype(np.int64)
        answers = self._read("answers", "bool", begin, length) if self.chats else None
        starts = self._map("starts", "int64")
        number = bisect_right(starts, begin)
        inside = np.array(starts[number : bisect_left(starts, begin + length)])
        before = number - bisect_right(starts, self.first)
        return TokenWindow(tokens, answers, before + np.searchsorted(inside, np.arange(begin, begin + length), "right"))

    def _nearest(self, name: str, aim: int) -> int | None:
        """The entry nearest to `aim` that lies inside this store."""
        places = self._map(name, "int64")
        number = bisect_left(places, aim)
        found = [int(place) for place in places[max(number - 1, 0) : number + 1] if self.first < place < self.last]
        return min(found, key=lambda place: abs(place - aim), default=None)

    def _bytes_before(self, place: int) -> int:
        places, sizes = self._map("places", "int64"), self._map("bytes", "int64")
        number = bisect_right(places, place) - 1
        begin, size = int(places[number]), int(sizes[number])
        more = number + 1 < len(places)
        end, full = (int(places[number + 1]), int(sizes[number + 1])) if more else (self._length(), self.all_bytes)
        return size + round((full - size) * (place - begin) / max(end - begin, 1))

    def _length(self) -> int:
        return (self.folder / "tokens.bin").stat().st_size // np.dtype(self.kind).itemsize

    def _map(self, name: str, kind: str) -> Any:
        path = self.folder / f"{name}.bin"
        try:
            return _mapped(path, kind, path.stat().st_mtime_ns)
        except (OSError, ValueError):
            raise self._lost(name) from None

    def _read(self, name: str, kind: str, first: int, count: int) -> Any:
        size = np.dtype(kind).itemsize
        try:
            found = np.fromfile(self.folder / f"{name}.bin", kind, count, offset=first * size)
        except OSError:
            raise self._lost(name) from None
        if len(found) != count:
            raise self._lost(name)
        return found

    def _lost(self, name: str) -> DataError:
        return DataError(f"{name}.bin of the token store {self.folder} is missing or cut off: start again to make it")


@lru_cache(maxsize=16)
def _mapped(path: Path, kind: str, written: int) -> Any:
    """A memory-mapped file; `written`, its time stamp, tells a new file from an old one of the same name."""
    return np.memmap(path, kind, mode="r")
