"""Windows of tokens over a stream of documents: what a language model learns from and is evaluated on."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, cast

import numpy as np
import torch
from numpy.typing import NDArray

from weft.data.batching import shuffled_order
from weft.data.readers.files import DataError
from weft.data.stores.token_store import TokenStore
from weft.data.tokenizers.tokenizer import Tokenizer
from weft.foundation.seeds import generator
from weft.models.build import AnySpec
from weft.models.teacher_forcing import IGNORED
from weft.tasks.support.splits.split import same_text
from weft.tasks.task import Batch, Split

STRETCH = 1 << 14  # tokens whose text is looked at together
PARAGRAPH, LONGEST_PARAGRAPH = 80, 20_000  # letters of paragraphs that are compared
BLANK_LINE = re.compile(r"\n\s*\n")
BLOCK = 256  # tokens per example of a text, when models are evaluated and compared


@dataclass(frozen=True)
class TextSplit(Split):
    """Windows of `context` tokens over a stream; in training they begin elsewhere in every epoch.

    `most`: what a window holds however long the model is. `prefix`: number of first tokens that the model sees in both
    directions; what it sees it is not asked, so answers begin after them. `tokenizer`: what makes texts of tokens.
    """

    identified: ClassVar[str] = "paragraphs"
    store: TokenStore
    context: int = 256
    isolate: bool = False
    most: int | None = None
    prefix: int = 0
    tokenizer: Tokenizer | None = None

    def __len__(self) -> int:
        return max(1, -(-(len(self.store) - 1) // self.context))

    @property
    def tokens(self) -> int:
        """Tokens of the stream."""
        return len(self.store)

    def cut(self, length: int) -> TextSplit:
        """Windows of at most `length`; a short text is one window."""
        length = length if self.most is None else min(length, self.most)
        return replace(self, context=max(1, min(length, len(self.store) - 1)))

    def fit(self, spec: AnySpec) -> Split:
        """Windows for this model, whose prefix is given and not asked for."""
        split = replace(cast(TextSplit, super().fit(spec)), prefix=spec.declares().text_prefix or 0)
        if split.context < split.prefix:
            raise DataError(
                f"windows of {split.context} tokens lie in the prefix of {split.prefix}: shorten mixer.mask.length"
            )
        return split

    def identities(self) -> Iterator[tuple[Hashable, str]]:
        """Paragraphs, between blank lines, of PARAGRAPH letters or more; of very long ones the lines."""
        left = ""
        for first in range(0, len(self.store) if self.tokenizer is not None else 0, STRETCH):
            tokens = self.store.window(first, min(STRETCH, len(self.store) - first)).tokens
            left += cast(Tokenizer, self.tokenizer).decode(tokens.tolist())
            last = first + STRETCH >= len(self.store)
            *whole, left = [*BLANK_LINE.split(left), ""] if last else BLANK_LINE.split(left)
            if len(left) > LONGEST_PARAGRAPH:
                whole, left = [*whole, left], ""
            for paragraph in whole:
                for text in paragraph.split("\n") if len(paragraph) > LONGEST_PARAGRAPH else [paragraph]:
                    same = same_text(text)
                    if len(same) >= PARAGRAPH:
                        yield same, text.strip()

    def limit(self, count: int) -> TextSplit:
        """The first `count` stretches of BLOCK tokens, however long the windows are."""
        end = min(len(self.store), count * BLOCK + 1)
        return replace(self, store=self.store.slice(0, end), context=min(self.context, end - 1))

    def batches(self, size: int, seed: int | None, epoch: int = 0) -> Sequence[Sequence[int]]:
        """Windows in random order, or one after the other."""
        order = list(range(len(self))) if seed is None else shuffled_order(self._whole(), seed, epoch)
        rows = max(1, size // self.context)
        found = [order[first : first + rows] for first in range(0, len(order), rows)]
        return found[:-1] if seed is not None and len(found) > 1 and len(found[-1]) < rows else found

    @property
    def least(self) -> int:
        """The tokens of one window: no batch is smaller."""
        return self.context

    def _whole(self) -> int:
        """Windows that are whole wherever the first begins."""
        return max(1, (len(self.store) - self.context) // self.context)

    def batch(self, examples: Sequence[int], seed: int | None = None, epoch: int = 0) -> Batch:
        """Tokens x_1 .. x_T and labels x_2 .. x_(T+1); a last window that is short is filled up."""
        T = self.context
        shift = 0
        if seed is not None:
            room = len(self.store) - 1 - self._whole() * T
            shift = int(torch.randint(max(1, min(T, room + 1)), (1,), generator=generator(seed, "shift", epoch)))
        starts = [shift + number * T for number in examples]
        rows = [self.store.window(first, min(T + 1, len(self.store) - first)) for first in starts]
        tokens = np.zeros((len(rows), T), dtype=np.int64)
        labels = np.full((len(rows), T), IGNORED, dtype=np.int64)
        documents = np.full((len(rows), T), -1, dtype=np.int64)
        for row, window in enumerate(rows):
            n = len(window.tokens) - 1
            tokens[row, :n], labels[row, :n] = window.tokens[:-1], window.tokens[1:]
            if window.answers is not None:
                labels[row, :n][~window.answers[1:]] = IGNORED
            if self.isolate:
                documents[row, :n] = window.documents[:-1]
                labels[row, :n][window.documents[1:] != window.documents[:-1]] = IGNORED
            if self.prefix:
                labels[row, :n][_places(window.documents[:-1] if self.isolate else None, n) + 1 < self.prefix] = IGNORED
        inputs: dict[str, Any] = {"tokens": torch.from_numpy(tokens)}
        if self.isolate:
            inputs["documents"] = torch.from_numpy(documents)
        count = int((labels != IGNORED).sum())
        return Batch(inputs, torch.from_numpy(labels), count, tokens.size)


def _places(documents: NDArray[np.int64] | None, count: int) -> NDArray[np.int64]:
    """The position of each of `count` tokens in its row, or in its document where these do not see each other."""
    index = np.arange(count)
    documents = np.zeros(count, dtype=np.int64) if documents is None else documents
    begins = np.concatenate(([True], documents[1:] != documents[:-1]))
    return index - np.maximum.accumulate(np.where(begins, index, 0))
