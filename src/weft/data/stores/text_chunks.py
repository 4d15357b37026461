"""Texts of any size in chunks, cut between words, so that a chunk has the tokens that it has within the whole text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from weft.data.readers.files import BLOCK_SIZE, DataError, find_files, name_suffix, open_bytes, read_blocks
from weft.data.readers.texts import TEXT_SUFFIXES, Chat, read_documents
from weft.data.stores.prompt_format_protocol import AnswerSpans, ChatRenderer, RenderedChat
from weft.foundation.errors import WeftError

CHUNK_SIZE = 1 << 14  # characters
ROW_SUFFIXES = (".jsonl", ".parquet")  # files of many documents, each of which fits in memory
# Where a text may be cut, best first. A space between two words is the one place where all tokenizers in use cut too:
# some join punctuation with the line ends after it, or treat the start of a text as a space.
CUT_PATTERNS = (r"(?<=[^\W_]) (?=[^\W_])", r"(?<=[^\W_])\s", r"(?<=\S)\s", r"(?<=[^\W_])(?=[.,;!?。，、！？；])")


@dataclass(frozen=True, slots=True)
class TextChunk:
    """A part of a document, or of a chat turn if it has a role; `first` and `last` of that document or turn.

    `answers`: the spans in which the assistant speaks, in a chat rendered as one text.
    """

    document: int
    text: str
    role: str | None = None
    first: bool = True
    last: bool = True
    answers: AnswerSpans | None = None


def read_chunks(
    paths: Sequence[str | Path], size: int = CHUNK_SIZE, chat: ChatRenderer | None = None
) -> Iterator[TextChunk]:
    """All texts in order, in chunks of at most `size` characters; empty documents are skipped.

    Chats come turn by turn, or as the texts that `chat` renders, one chunk per text.
    """
    number = 0
    for path in find_files(paths, TEXT_SUFFIXES):
        for document in read_documents([path]) if name_suffix(path) in ROW_SUFFIXES else [read_blocks(path)]:
            if isinstance(document, Chat) and chat is not None:
                for text, answers in _render_chat(chat, document, path):
                    yield TextChunk(number, text, answers=answers)
                    number += 1
            elif isinstance(document, Chat):
                for role, content in document.messages:
                    yield from _chunks(number, [content], size, role)
                number += 1
            elif document:
                yield from _chunks(number, [document] if isinstance(document, str) else document, size, None)
                number += 1


def _render_chat(chat: ChatRenderer, document: Chat, path: Path) -> list[RenderedChat]:
    messages = [{"role": role, "content": content} for role, content in document.messages]
    try:
        return [found for found in chat.training_texts(messages) if found.text]
    except WeftError as error:
        raise DataError(f"{path.name}, the chat that begins {messages[0]['content']!r:.40}: {error}") from None


def _chunks(document: int, blocks: Iterable[str], size: int, role: str | None) -> Iterator[TextChunk]:
    parts = chunk_text(blocks, size)
    text, first = next(parts, ""), True
    for following in parts:
        yield TextChunk(document, text, role, first, last=False)
        text, first = following, False
    yield TextChunk(document, text, role, first)


def chunk_text(blocks: Iterable[str], size: int) -> Iterator[str]:
    """The text that the blocks make up, in chunks of at most `size` characters."""
    rest = ""
    for block in blocks:
        rest += block
        first = 0
        while len(rest) - first > size:
            last = _cut_position(rest, first, first + size)
            yield rest[first:last]
            first = last
        rest = rest[first:]
    if rest:
        yield rest


def _cut_position(text: str, first: int, last: int) -> int:
    """The last good position to cut after `first`, up to `last`; `last` itself if there is none."""
    for pattern in CUT_PATTERNS:
        search = re.compile(pattern)
        for start in (max(first + 1, last - 200), first + 1):
            # The end lies one further, because a cut looks at the character after it.
            places = [found.start() for found in search.finditer(text, start, last + 1)]
            if places:
                return min(places[-1], last)
    return last


def has_chats(paths: Sequence[str | Path]) -> bool:
    """Whether a .jsonl file mentions messages; searches the bytes, which is much faster than reading rows."""
    sign = b'"messages"'
    for path in find_files(paths, TEXT_SUFFIXES):
        if name_suffix(path) == ".jsonl":
            with open_bytes(path) as file:
                end = b""
                while block := file.read(BLOCK_SIZE):
                    if sign in end + block:
                        return True
                    end = block[-len(sign) :]
    return False


def sample_texts(
    paths: Sequence[str | Path], most: int | None = 50_000_000, size: int = 4 * CHUNK_SIZE
) -> Iterator[str]:
    """An even, deterministic sample of the texts of at most `most` characters; all of them if that is None."""
    share = 1.0
    if most is not None:
        files = find_files(paths, TEXT_SUFFIXES)
        packed = any(path.suffix.lower() in (".gz", ".parquet") for path in files)
        # A character is a byte or more, so plain files need no counting.
        total = sum(len(p.text) for p in read_chunks(files, size)) if packed else sum(p.stat().st_size for p in files)
        share = min(1.0, most / max(total, 1))
    due = 0.0
    for chunk in read_chunks(paths, size):
        due += share * len(chunk.text)
        if due >= len(chunk.text):
            due -= len(chunk.text)
            yield chunk.text


def distinct_characters(paths: Sequence[str | Path], size: int = 4 * CHUNK_SIZE) -> Iterator[str]:
    """The distinct characters of each chunk: enough to train a tokenizer of characters, and fast for any text."""
    return ("".join(sorted(set(chunk.text))) for chunk in read_chunks(paths, size))


def count_bytes(text: str) -> int:
    """UTF-8 bytes of a text."""
    return len(text) if text.isascii() else len(text.encode())
