"""Labels of what went into a model: tokens by the run's tokenizer, words by their characters, else numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from weft.data.tokenizers.lexicon import UNKNOWN_CHARACTER, UNKNOWN_WORD, WORD_END, Lexicon


def input_labels(run: Any, inputs: Mapping[str, Tensor]) -> list[str]:
    """A label per token, with all that stands around the text: [CLS], a start token."""
    task = getattr(run, "task", None)
    tokenizer = getattr(task, "tokenizer", None)
    lexicon = getattr(getattr(task, "encoder", None), "lexicon", None)
    for given in inputs.values():
        if given.is_floating_point():
            continue
        if given.dim() == 2 and isinstance(lexicon, Lexicon):
            return [_word(row, lexicon) for row in given.tolist()]
        if given.dim() == 1:
            return tokenizer.pieces(given.tolist()) if tokenizer is not None else [str(x) for x in given.tolist()]
    return []


def _word(row: Sequence[int], lexicon: Lexicon) -> str:
    """As it is written; a word with a letter that training never saw in lower case, or with a mark for the letter."""
    if UNKNOWN_CHARACTER in row[1:] and row[0] != UNKNOWN_WORD:
        return lexicon.words[row[0] - UNKNOWN_WORD - 1]
    written = [number for number in row[1:] if number == UNKNOWN_CHARACTER or number > WORD_END]
    letters = ("?" if number == UNKNOWN_CHARACTER else lexicon.characters[number - WORD_END - 1] for number in written)
    return "".join(letters) or "?"
