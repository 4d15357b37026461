"""Files of a token store: written once, atomically, and found again by the content they were made from."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from weft.data.readers.files import DataError, file_digest, find_files
from weft.data.readers.texts import CHAT_ROLES, CHAT_TOKENS, TEXT_SUFFIXES
from weft.data.stores.prompt_format_protocol import PromptFormatProtocol
from weft.data.stores.text_chunks import CHUNK_SIZE, TextChunk, count_bytes, read_chunks
from weft.data.tokenizers.bulk_encoding import adds_dummy_prefix, bulk_encoder
from weft.data.tokenizers.tokenizer import Tokenizer
from weft.foundation.files.atomic_files import flush_to_disk
from weft.foundation.files.json_text import parse_json

FORMAT = 1
HEADER_FILE = "store.json"
BATCH_CHARACTERS = 1 << 20  # encoded at once: the tokenizers package needs some hundred bytes per token
SMALLEST_CHUNK = 100  # characters, in small texts; larger ones have about a thousand chunks of up to CHUNK_SIZE
StoreProgress = Callable[[int], None]


def store_name(
    paths: Sequence[str | Path], tokenizer: Tokenizer, prompt_format: PromptFormatProtocol | None = None
) -> str:
    """A digest of the files' content, order and kind, of the tokenizer and of the prompt format."""
    known = {} if prompt_format is None else prompt_format.to_tree()
    more = [json.dumps(known, sort_keys=True)] if known else []
    whole = hashlib.sha256(json.dumps([FORMAT, tokenizer.engine.to_str(), *more]).encode())
    for path in find_files(paths, TEXT_SUFFIXES):
        kind = "".join(path.suffixes[-2:]).lower()
        whole.update(json.dumps([kind if kind.endswith(".gz") else path.suffix.lower(), file_digest(path)]).encode())
    return whole.hexdigest()[:32]


def read_store_header(folder: Path) -> dict[str, Any] | None:
    """The header of a store; None if it is missing, incomplete or of another format."""
    try:
        header = parse_json((folder / HEADER_FILE).read_bytes())
        whole = header["format"] == FORMAT and all(
            (folder / name).stat().st_size == size for name, size in header["sizes"].items()
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return dict(header) if whole else None


def make_store(
    paths: Sequence[str | Path],
    tokenizer: Tokenizer,
    folder: Path,
    progress: StoreProgress | None = None,
    prompt_format: PromptFormatProtocol | None = None,
) -> dict[str, Any]:
    """The header of the store in `folder`, which is made unless it exists; a second process waits for the first."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _store_lock(folder):
            header = read_store_header(folder)
            if header is None:
                for left in (folder, *folder.parent.glob(f".{folder.name}.*.new")):
                    shutil.rmtree(left, ignore_errors=True)
                header = _make(paths, StoreWriter(_new(folder), tokenizer, prompt_format), folder, progress)
            return header
    except OSError as error:
        raise _explain(folder, error) from None


def _new(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.{os.getpid()}.new")


def _make(
    paths: Sequence[str | Path], writer: StoreWriter, folder: Path, progress: StoreProgress | None
) -> dict[str, Any]:
    fresh = writer.folder
    fresh.mkdir()
    try:
        with writer:
            size = sum(path.stat().st_size for path in find_files(paths, TEXT_SUFFIXES))
            for batch in _batches(read_chunks(paths, min(max(size // 1000, SMALLEST_CHUNK), CHUNK_SIZE), writer.chat)):
                writer.add(batch)
                if progress is not None:
                    progress(writer.read)
            header = writer.finish()
        flush_to_disk(fresh)
        os.rename(fresh, folder)
        flush_to_disk(folder.parent)
        return header
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def _batches(chunks: Iterator[TextChunk]) -> Iterator[list[TextChunk]]:
    batch: list[TextChunk] = []
    size = 0
    for chunk in chunks:
        batch.append(chunk)
        size += len(chunk.text) + 10
        if size >= BATCH_CHARACTERS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


class StoreWriter:
    """Writes chunks as tokens: a stop (or start) token between documents, a role token before each turn of a chat.

    With a prompt format of its own, each document stands between its start and its stop ids.
    """

    def __init__(self, folder: Path, tokenizer: Tokenizer, prompt_format: PromptFormatProtocol | None = None) -> None:
        self.folder, self.tokenizer, self.prompt_format = folder, tokenizer, prompt_format
        self.before = () if prompt_format is None else prompt_format.before
        self.stops = () if prompt_format is None else prompt_format.stops
        self.chat = None if prompt_format is None else prompt_format.chat
        self.framed = bool(self.before or self.stops)
        self.stop = self.stops[0] if self.stops else tokenizer.stop
        self.encode, self.joins = bulk_encoder(tokenizer), adds_dummy_prefix(tokenizer)
        self.kind = np.dtype(np.uint16 if tokenizer.vocabulary <= 1 << 16 else np.uint32)
        self.between = self.stop if self.stop is not None or self.before else tokenizer.start
        self.files: dict[str, BinaryIO] = {}
        self.tokens = self.documents = self.bytes = self.read = 0
        self.counted, self.closed = True, False  # the previous chunk: counted in the loss; already ended by a stop

    def __enter__(self) -> StoreWriter:
        return self

    def __exit__(self, *_: object) -> None:
        for file in self.files.values():
            with contextlib.suppress(OSError):
                file.close()

    def add(self, batch: Sequence[TextChunk]) -> None:
        flat, counts = self._ids(batch)
        ids = flat.astype(self.kind)
        tokens: list[Any] = []
        answers: list[tuple[bool, int]] = []
        rows: dict[str, list[int]] = {"starts": [], "places": [], "bytes": []}
        chats = "answers" in self.files or bool(self.before) or any(p.role or p.answers is not None for p in batch)
        if chats:
            self._open_answers()
        written = self._encode_rendered([chunk for chunk in batch if chunk.answers is not None])
        end = 0
        for chunk, count in zip(batch, counts.tolist(), strict=True):
            first, end = end, end + count
            if chunk.document == self.documents:
                if self.documents and self.between is not None and not self.closed:
                    tokens.append(np.array([self.between], self.kind))
                    answers.append((self.counted, 1))
                    self.tokens += 1
                rows["starts"].append(self.tokens)
                self.documents += 1
            rows["places"].append(self.tokens)
            rows["bytes"].append(self.bytes)
            before, after = self._frame(chunk)
            own, runs = ids[first:end], [(chunk.role in (None, CHAT_ROLES[-1]), count)]
            if chunk.answers is not None:
                own, runs = next(written)
                after = self._end(own)
            self.counted, self.closed = runs[-1][0], bool(after) or chunk.answers is not None
            tokens += [np.array(before, self.kind), own, np.array(after, self.kind)]
            answers += [(False, len(before)), *runs, (self.counted, len(after))]
            self.tokens += len(before) + len(own) + len(after)
            self.read += count_bytes(chunk.text)
            self.bytes += _counted_bytes(chunk)
        self._write("tokens", np.concatenate(tokens))
        if chats:
            self._write("answers", np.repeat([flag for flag, _ in answers], [count for _, count in answers]))
        for name, values in rows.items():
            self._write(name, np.array(values, np.int64))

    def _ids(self, batch: Sequence[TextChunk]) -> Any:
        texts = [p.text[1:] if self.joins and not p.first and p.text[0] == " " else p.text for p in batch]
        return self.encode(["" if p.answers is not None else text for p, text in zip(batch, texts, strict=True)])

    def _encode_rendered(self, chunks: Sequence[TextChunk]) -> Iterator[tuple[Any, list[tuple[bool, int]]]]:
        """Ids of rendered chats, and runs of tokens that count or not; a token belongs where it ends."""
        found = self.tokenizer.encode_many_with_places([chunk.text for chunk in chunks])
        for chunk, one in zip(chunks, found, strict=True):
            flags = (any(first < end <= last for first, last in chunk.answers or ()) for _, end in one.offsets)
            runs = [(flag, len(list(run))) for flag, run in groupby(flags)]
            yield np.array(one.ids, self.kind), runs or [(False, 0)]

    def _end(self, own: Any) -> list[int]:
        """The stop token after a rendered chat; most templates write one, sometimes with a line end after it."""
        if self.stop is None or np.isin(own[-3:], [self.stop, *self.stops]).any():
            return []
        return [self.stop]

    def _frame(self, chunk: TextChunk) -> tuple[list[int], list[int]]:
        """Ids before and after the chunk's own: a turn's role at its start, stop at the end of an answer."""
        if chunk.answers is not None:
            return [], []
        if chunk.role is None:
            after = [self.stop] if self.framed and chunk.last and self.stop is not None else []
            return [*self.before] if chunk.first else [], after
        name = CHAT_TOKENS[CHAT_ROLES.index(chunk.role)]
        role, stop = self.tokenizer.id_of(name), self.stop
        if role is None or stop is None:
            missing = name if role is None else "for stop"
            if self.prompt_format is not None:
                raise DataError(
                    "there are chats among the texts, but this model was not trained to chat: give texts, or take a "
                    "model that has a chat template"
                )
            raise DataError(
                f"the tokenizer has no token {missing}, which chats need: train one with {', '.join(CHAT_TOKENS)}"
            )
        return [role] if chunk.first else [], [stop] if chunk.last and chunk.role == CHAT_ROLES[-1] else []

    def _open_answers(self) -> None:
        """Before the first chat every token counts; without chats there is no answers file."""
        if "answers" not in self.files:
            for first in range(0, self.tokens, BATCH_CHARACTERS):
                self._write("answers", np.ones(min(BATCH_CHARACTERS, self.tokens - first), np.bool_))

    def _write(self, name: str, values: np.ndarray[Any, Any]) -> None:
        if name not in self.files:
            self.files[name] = (self.folder / f"{name}.bin").open("wb")
        self.files[name].write(values.data)

    def finish(self) -> dict[str, Any]:
        """Flush all files to the disk and write the header."""
        if not self.tokens:
            raise DataError("the texts hold no token: give files with text, or a tokenizer that knows its words")
        for file in self.files.values():
            file.flush()
            os.fsync(file.fileno())
        header = {
            "format": FORMAT,
            "tokens": self.tokens,
            "documents": self.documents,
            "bytes": self.bytes,
            "type": self.kind.name,
            "sizes": {f"{name}.bin": (self.folder / f"{name}.bin").stat().st_size for name in self.files},
        }
        path = self.folder / HEADER_FILE
        path.write_text(json.dumps(header, indent=1) + "\n", encoding="utf-8")
        flush_to_disk(path)
        return header


def _counted_bytes(chunk: TextChunk) -> int:
    """UTF-8 bytes of what counts in the loss."""
    if chunk.answers is not None:
        return sum(count_bytes(chunk.text[first:last]) for first, last in chunk.answers)
    return count_bytes(chunk.text) if chunk.role in (None, CHAT_ROLES[-1]) else 0


@contextlib.contextmanager
def _store_lock(folder: Path) -> Iterator[None]:
    """Wait until no other process makes this store; the system releases the lock even after a kill."""
    with folder.with_name(f".{folder.name}.lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _explain(folder: Path, error: OSError) -> DataError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DataError(f"the disk is full, so no tokens were stored in {folder.parent}: free some space there")
    return DataError(f"cannot store tokens in {folder.parent}: {error.strerror or error}; choose another cache folder")
