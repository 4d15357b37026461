"""Readers of text: documents, pairs, labeled and tagged sentences, chats."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from weft.data.readers.files import DataError, find_files, name_suffix, read_jsonl, read_lines, read_table, read_text

TEXT_SUFFIXES = (".txt", ".md", ".jsonl", ".parquet")
TABLE_SUFFIXES = (".tsv", ".csv", ".jsonl")
TEXT_FIELDS = ("text", "content", "document")
SENTENCE_FIELDS = (*TEXT_FIELDS, "sentence")
LABEL_FIELDS = ("label", "class", "sentiment")
CHAT_ROLES = ("system", "user", "assistant")
CHAT_TOKENS = ("<System:>", "<User:>", "<Assistant:>")  # special tokens that open a turn, in the order of ROLES


@dataclass(frozen=True)
class Chat:
    """A conversation: (role, content) in turn; the loss is on the assistant's turns only."""

    messages: tuple[tuple[str, str], ...]


def read_documents(paths: Sequence[str | Path]) -> Iterator[str | Chat]:
    """Documents one by one: a .txt file, a line of .jsonl (text or messages), or a row of .parquet each."""
    for path in find_files(paths, TEXT_SUFFIXES):
        suffix = name_suffix(path)
        if suffix == ".jsonl":
            yield from _json_documents(path)
        elif suffix == ".parquet":
            yield from _parquet_documents(path)
        else:
            yield read_text(path)


def _json_documents(path: Path) -> Iterator[str | Chat]:
    for number, row in read_jsonl(path):
        if "messages" in row:
            yield _chat(path, number, row["messages"])
            continue
        name = next((field for field in TEXT_FIELDS if isinstance(row.get(field), str)), None)
        if name is None:
            raise DataError(f"{path.name}, line {number}: no text; a field named text or messages is expected")
        yield row[name]


def _chat(path: Path, number: int, messages: object) -> Chat:
    if not isinstance(messages, list) or not messages:
        raise DataError(f"{path.name}, line {number}: messages must be a list of role and content")
    turns = []
    for message in messages:
        role = message.get("role") if isinstance(message, dict) else None
        content = message.get("content") if isinstance(message, dict) else None
        if role not in CHAT_ROLES or not isinstance(content, str):
            raise DataError(
                f"{path.name}, line {number}: a message has a role of {', '.join(CHAT_ROLES)} and a content"
            )
        turns.append((role, content))
    return Chat(tuple(turns))


def _parquet_documents(path: Path) -> Iterator[str]:
    try:
        from pyarrow import parquet
    except ImportError:
        raise DataError(f"{path.name} needs the package pyarrow: pip install pyarrow") from None
    try:
        file = parquet.ParquetFile(path)
    except (OSError, ValueError) as error:
        raise DataError(f"{path.name} is not a readable .parquet file: {error}") from None
    name = next((field for field in TEXT_FIELDS if field in file.schema_arrow.names), None)
    if name is None:
        raise DataError(f"{path.name} has no column text: it has {', '.join(file.schema_arrow.names)[:200]}")
    for batch in file.iter_batches(columns=[name]):
        yield from (str(value) for value in batch.column(0).to_pylist() if value is not None)


def read_pairs(paths: Sequence[str | Path], columns: Sequence[str] | None = None) -> list[tuple[str, str]]:
    """Pairs of texts: from tables (two columns), or from two parallel text files, line by line."""
    files = find_files(paths, TABLE_SUFFIXES)
    if all(name_suffix(path) in TABLE_SUFFIXES for path in files):
        return _expect_pairs(files, [pair for path in files for pair in _table_pairs(path, columns)])
    if len(files) != 2:
        raise DataError(
            f"{len(files)} text files: parallel texts are two files, line by line, or a table of two columns"
        )
    source, target = ([line for _, line in read_lines(path)] for path in files)
    if len(source) != len(target):
        sizes = f"{files[0].name} has {len(source)} lines and {files[1].name} {len(target)}"
        raise DataError(f"{sizes}: parallel files need a line in one for each line in the other")
    return _expect_pairs(files, list(zip(source, target, strict=True)))


def _expect_pairs(files: Sequence[Path], pairs: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """The pairs without a blank side; at least one is required."""
    kept = [(a, b) for a, b in pairs if a.strip() and b.strip()]
    if not kept:
        raise DataError(f"{' and '.join(path.name for path in files)} hold no pair of texts: give rows with two")
    return kept


def _table_pairs(path: Path, columns: Sequence[str] | None) -> Iterator[tuple[str, str]]:
    for number, cells in read_table(path, columns):
        if len(cells) != 2:
            raise DataError(
                f"{path.name}, line {number}: {len(cells)} columns, but a pair is two: "
                "choose them with --set data.columns=source,target"
            )
        yield cells[0], cells[1]


def read_labeled(
    paths: Sequence[str | Path], columns: Sequence[str] | None = None, learn: bool = True
) -> list[tuple[str, str]]:
    """(text, label) from tables of two columns; a header or fields such as text and label are recognized.

    With `learn`, at least two labels with at least two examples each are required.
    """
    rows: list[tuple[str, str]] = []
    for path in find_files(paths, TABLE_SUFFIXES):
        for number, cells in read_table(path, columns or _label_columns(path)):
            if len(cells) != 2:
                raise DataError(
                    f"{path.name}, line {number}: {len(cells)} columns, but text and label are two: "
                    "choose them with --set data.columns=text,label"
                )
            if not cells[1].strip():
                raise DataError(f"{path.name}, line {number}: the label is empty: give one, or remove the line")
            rows.append((cells[0], cells[1].strip()))
    if learn or not rows:
        expect_classes([label for _, label in rows])
    return rows


def _label_columns(path: Path) -> list[str] | None:
    """The names of the text and label columns, in any order of the header or the .jsonl fields."""
    if name_suffix(path) == ".jsonl":
        names = list(next(iter(read_jsonl(path)), (0, {}))[1])
    else:
        names = next(iter(read_table(path)), (0, []))[1]
    labels = [name for name in names if name.strip().lower() in LABEL_FIELDS]
    if len(labels) != 1:
        return None
    others = [name for name in names if name not in labels]
    texts = others if len(others) == 1 else [name for name in others if name.strip().lower() in SENTENCE_FIELDS]
    return [texts[0], labels[0]] if len(texts) == 1 else None


def expect_classes(labels: Sequence[str]) -> None:
    """Refuse labels that cannot be learned: fewer than two classes, or a class with a single example."""
    counts: dict[str, int] = {}
    for label in labels:
        counts[label] = counts.get(label, 0) + 1
    if not counts:
        raise DataError("there is no labeled example: give a file with rows of data")
    if len(counts) < 2:
        raise DataError(f"there is only one label ({next(iter(counts))!r}): two or more are needed to tell apart")
    lonely = next((label for label, count in counts.items() if count == 1), None)
    if lonely is not None:
        raise DataError(f"label {lonely!r} has one example: give it more, or leave it out")


def read_tagged(paths: Sequence[str | Path], column: int | None = None) -> list[tuple[list[str], list[str]]]:
    """(words, tags) of sentences: CoNLL-U (UPOS in column 4), or lines of word and tag, blank lines between."""
    sentences: list[tuple[list[str], list[str]]] = []
    for path in find_files(paths, (".conllu", ".conll", ".txt", ".tsv", ".bio")):
        words: list[str] = []
        tags: list[str] = []
        number = 0
        for number, line in read_lines(path):
            if not line.strip():
                if words:
                    sentences.append((words, tags))
                    words, tags = [], []
                continue
            cells = line.split("\t") if "\t" in line else line.split()
            if cells[0] == "-DOCSTART-" or (not words and _is_comment(line, cells)):
                continue
            if len(cells) == 10 and not cells[0].isdigit():
                continue  # CoNLL-U: ranges (1-2) and empty nodes (1.1) are not words
            word, tag = _word_and_tag(path, number, cells, column)
            words.append(word)
            tags.append(tag)
        if words:
            sentences.append((words, tags))
    if not sentences:
        raise DataError(f"{Path(paths[0]).name} has no tagged word: lines of word and tag, or CoNLL-U, are expected")
    return sentences


def _is_comment(line: str, cells: list[str]) -> bool:
    """Comments come before a sentence; `#` and `#tag` can also be its first words, with a tag each."""
    return line.startswith("# ") or (line.startswith("#") and "\t" not in line and len(cells) != 2)


def _word_and_tag(path: Path, number: int, cells: list[str], column: int | None) -> tuple[str, str]:
    universal = len(cells) == 10
    place = column - 1 if column is not None else 3 if universal else len(cells) - 1
    if len(cells) < 2 or not 0 <= place < len(cells):
        raise DataError(f"{path.name}, line {number}: {len(cells)} columns, but a word and its tag are needed")
    return cells[1] if universal else cells[0], cells[place]
