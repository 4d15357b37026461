"""Token tables: a text as tokens with their ids and bytes, and the text that the ids decode to.

A token may be a part of a character's UTF-8 bytes, a special token, or the unknown one, which stands for a text that
the vocabulary lacks.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from weft.data.tokenizers.tokenizer import Tokenizer
from weft.data.tokenizers.vocabulary_files import METASPACE, byte_letters

BROKEN = "\ufffd"  # what decoding writes for bytes that are no complete character
CONTINUATION = "##"  # BERT's mark of a piece that goes on with a word
WORD_END = "</w>"  # the mark of a word's last piece in the BPE of Sennrich et al. (2016)


class TokenBytes:
    """The bytes that each token of a vocabulary stands for, whatever marks the vocabulary writes it with.

    Byte-level vocabularies (GPT-2) have a character per byte, SentencePiece has `▁` for a space and `<0xE4>` for a
    byte, WordPiece (BERT) has `##` before a piece that goes on with a word.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.engine = tokenizer.engine
        self.added = {index: str(token.content) for index, token in self.engine.get_added_tokens_decoder().items()}
        decoder = self.engine.decoder
        self.byte_of = {letter: byte for byte, letter in enumerate(byte_letters())}
        self.kinds = frozenset() if decoder is None else frozenset(_kinds(json.loads(decoder.__getstate__())))

    def of(self, index: int) -> bytes:
        """The bytes of one token; its name for special ones."""
        if index in self.added:
            return self.added[index].encode()
        token = str(self.engine.id_to_token(index) or "")
        if "ByteLevel" in self.kinds:
            known = all(letter in self.byte_of for letter in token)
            return bytes(self.byte_of[letter] for letter in token) if known else token.encode()
        if "ByteFallback" in self.kinds and len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
            return bytes([int(token[3:5], 16)])
        if "WordPiece" in self.kinds:
            token = token.removeprefix(CONTINUATION)
        if "BPEDecoder" in self.kinds and token.endswith(WORD_END):
            token = token.removesuffix(WORD_END) + " "
        return token.replace(METASPACE, " ").encode()


def _kinds(decoder: dict[str, Any]) -> set[str]:
    """The kinds of a decoder and of those that it is a sequence of."""
    return {str(decoder.get("type"))}.union(*(_kinds(inner) for inner in decoder.get("decoders", ())))


def token_names(tokenizer: Tokenizer, ids: Iterable[int]) -> list[str]:
    """Each token's own text; bytes that are no complete character as `\\xe4`, so that different tokens differ."""
    indices = list(ids)
    names = tokenizer.pieces(indices)
    if any(BROKEN in name for name in names):
        table = TokenBytes(tokenizer.target)
        names = [
            table.of(index).decode("utf-8", "backslashreplace") if BROKEN in name else name
            for index, name in zip(indices, names, strict=True)
        ]
    return names


@dataclass(frozen=True)
class TokenRow:
    """One token: its id, its name in the vocabulary, its bytes, and the text [start, end) that it was read from.

    `special`: it is never split and left out when a text is shown. `unknown`: the vocabulary lacks its text.
    """

    id: int
    token: str
    bytes: bytes
    start: int
    end: int
    special: bool = False
    unknown: bool = False


@dataclass(frozen=True)
class TokenTable:
    """A text in tokens; `rebuilt` is what their ids decode to, special tokens included."""

    text: str
    rows: tuple[TokenRow, ...]
    rebuilt: str
    vocabulary: int

    @property
    def round_trip(self) -> bool:
        """Whether the ids give the text back."""
        return self.rebuilt == self.text

    @property
    def size(self) -> int:
        """Bytes of the text in UTF-8."""
        return len(self.text.encode())

    @property
    def bytes_per_token(self) -> float | None:
        """None for a text without tokens."""
        return self.size / len(self.rows) if self.rows else None


def tabulate_tokens(tokenizer: Tokenizer, text: str) -> TokenTable:
    """The tokens of a text, in the source language where there are two; no special tokens are added."""
    engine, encoding = tokenizer.engine, tokenizer.encode_with_places(text)
    table = TokenBytes(tokenizer)
    special = {index for index, token in engine.get_added_tokens_decoder().items() if token.special}
    unknown = getattr(engine.model, "unk_token", None)
    rows = []
    for index, token, (start, end) in zip(encoding.ids, encoding.tokens, encoding.offsets, strict=True):
        lacking = token == unknown if unknown is not None else index == tokenizer.role("unknown") and index in special
        # A special token may be written out in the text; then it is read as itself.
        lacking = bool(lacking) and text[start:end] != token
        own = text[start:end].encode() if lacking else table.of(index)
        rows.append(TokenRow(index, token, own, start, end, index in special and not lacking, lacking))
    rebuilt = Tokenizer(engine).decode(encoding.ids, keep_special=True)
    return TokenTable(text, tuple(rows), rebuilt, tokenizer.vocabulary)
