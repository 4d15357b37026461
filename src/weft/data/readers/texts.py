"""Readers of text: documents, pairs, labeled and tagged sentences, chats."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from weft.data.readers.files import DataError, find_files, name_suffix, read_jsonl, read_lines, read_text
from weft.data.readers.tables import TABLE_SUFFIXES, Table, TableOptions, open_table

TEXT_SUFFIXES = (".txt", ".md", ".jsonl", ".parquet")
TEXT_FIELDS = ("text", "content", "document")
SENTENCE_FIELDS = (*TEXT_FIELDS, "sentence")
LABEL_FIELDS = ("label", "class", "sentiment")
PAIR, LABELED = "source and target are two", "text and label are two"
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
        yield from _column_texts(path, parquet.ParquetFile(path, page_checksum_verification=True))
    except (OSError, ValueError, ArithmeticError, NotImplementedError, MemoryError) as error:
        raise DataError(f"{path.name} is not a readable .parquet file: {error}") from None


def _column_texts(path: Path, file: Any) -> Iterator[str]:
    """The texts of the column that holds them, batch by batch."""
    name = next((field for field in TEXT_FIELDS if field in file.schema_arrow.names), None)
    if name is None:
        raise DataError(f"{path.name} has no column text: it has {', '.join(file.schema_arrow.names)[:200]}")
    for batch in file.iter_batches(columns=[name]):
        yield from (str(value) for value in batch.column(0).to_pylist() if value is not None)


@dataclass(frozen=True)
class TextRows:
    """Rows of two texts each, the names of the columns they were read from (none without a header), and notes on that.

    `notes`: what users should know of how their files were taken.
    """

    rows: list[tuple[str, str]]
    columns: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def read_pairs(paths: Sequence[str | Path], options: TableOptions = TableOptions()) -> TextRows:
    """Pairs of texts: from tables (two columns), or from two parallel text files, line by line."""
    files = find_files(paths, TABLE_SUFFIXES)
    if all(name_suffix(path) in TABLE_SUFFIXES for path in files):
        found = _read_tables(files, options, PAIR, _pair_columns)
        return replace(found, rows=_expect_pairs(files, found.rows))
    if len(files) != 2:
        raise DataError(
            f"{len(files)} text files: parallel texts are two files, line by line, or a table of two columns"
        )
    source, target = ([line for _, line in read_lines(path)] for path in files)
    if len(source) != len(target):
        sizes = f"{files[0].name} has {len(source)} lines and {files[1].name} {len(target)}"
        raise DataError(f"{sizes}: parallel files need a line in one for each line in the other")
    return TextRows(_expect_pairs(files, list(zip(source, target, strict=True))))


def _expect_pairs(files: Sequence[Path], pairs: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """The pairs without a blank side; at least one is required."""
    kept = [(a, b) for a, b in pairs if a.strip() and b.strip()]
    if not kept:
        raise DataError(f"{' and '.join(path.name for path in files)} hold no pair of texts: give rows with two")
    return kept


def _pair_columns(table: Table) -> list[int]:
    """The two there are; of more, users choose: the two with the longest texts are suggested."""
    if table.width == 2:
        return [0, 1]
    longest = sorted(range(table.width), key=lambda place: -table.mean_length(place))[:2]
    raise table.ask_for_columns(PAIR, sorted(longest))


def read_labeled(paths: Sequence[str | Path], options: TableOptions = TableOptions(), learn: bool = True) -> TextRows:
    """(text, label) from tables, from text files of one class each, or from a folder of text files per class.

    With `learn`, at least two labels with at least two examples each are required.
    """
    files = [file for path in map(Path, paths) for file in find_files([path], _labeled_suffixes(path))]
    if any(name_suffix(path) in TABLE_SUFFIXES for path in files):
        found = _read_tables(files, options, LABELED, _label_columns)
        found = replace(found, rows=[(text, label.strip()) for text, label in found.rows])
    else:
        found = _class_files(paths, files)
    if learn or not found.rows:
        expect_classes([label for _, label in found.rows])
    return found


def _labeled_suffixes(path: Path) -> tuple[str, ...]:
    """Text files beside tables in a folder describe it; without tables they are the data."""
    tables = path.is_dir() and any(name_suffix(file) in TABLE_SUFFIXES for file in path.rglob("*"))
    return TABLE_SUFFIXES if tables else (*TABLE_SUFFIXES, ".txt")


def _read_tables(
    files: Sequence[Path], options: TableOptions, wanted: str, choose: Callable[[Table], list[int]]
) -> TextRows:
    rows: list[tuple[str, str]] = []
    notes: list[str] = []
    columns: tuple[str, ...] = ()
    for path in files:
        if name_suffix(path) not in TABLE_SUFFIXES:
            raise DataError(f"{path.name} is no table, but other files are: give {' or '.join(TABLE_SUFFIXES)} files")
        table = open_table(path, options)
        places = choose_columns(table, options, choose)
        if len(places) != 2:
            raise DataError(f"{len(places)} columns are chosen, but {wanted}: --set data.columns=FIRST,SECOND")
        for number, (first, second) in table.read(places):
            if wanted == LABELED and not second.strip():
                raise DataError(f"{path.name}, line {number}: the label is empty: give one, or remove the line")
            rows.append((first, second))
        columns = columns or (tuple(table.names[place] for place in places) if table.names else ())
        notes += table.notes
        if places != sorted(places) and not options.columns:
            first, second = (table.column_names[place] for place in places)
            notes.append(f"{path.name}: column {first} is the text and column {second} the label")
    return TextRows(rows, columns, tuple(notes))


def choose_columns(table: Table, options: TableOptions, choose: Callable[[Table], list[int]]) -> list[int]:
    """Columns that were asked for, those that the run was trained on, or what is chosen by the looks of them."""
    if options.columns:
        return table.places(options.columns)
    if options.trained and all(name in table.names for name in options.trained):
        return table.places(options.trained)
    return choose(table)


def _label_columns(table: Table) -> list[int]:
    """The text and the label, in any order: by usual names, else the label is the column whose values repeat."""
    names = [name.lower() for name in table.names]
    labels = [place for place, name in enumerate(names) if name in LABEL_FIELDS]
    if len(labels) == 1 and table.width > 1:
        others = [place for place in range(table.width) if place != labels[0]]
        texts = others if len(others) == 1 else [place for place in others if names[place] in SENTENCE_FIELDS]
        if len(texts) == 1:
            return [texts[0], labels[0]]
    if table.width == 2:
        # Texts may repeat too: the order is turned only where the first column is clearly the label.
        first, second = table.different(0), table.different(1)
        return [1, 0] if 2 * first < min(second, len(table.first_rows)) else [0, 1]
    text = max(range(table.width), key=table.mean_length)
    others = [place for place in range(table.width) if place != text]
    label = min(others, key=lambda place: (table.different(place) < 2, table.different(place)), default=text)
    raise table.ask_for_columns(LABELED, [text, label])


def _class_files(paths: Sequence[str | Path], files: Sequence[Path]) -> TextRows:
    """Text files by class: a folder of them per class, one text each; else a class per file, one text per line."""
    folders = {path.parent for path in files}
    if all(Path(path).is_dir() for path in paths) and len(folders) > 1:
        rows = [(read_text(path).strip(), path.parent.name) for path in files]
        return TextRows(rows, notes=(f"{len(files)} text files: each is one text, its folder the class",))
    if len(files) < 2:
        raise DataError(
            f"{files[0].name} is one text file, so one class: give a file per class, such as pos.txt neg.txt, or a "
            "table of text and label"
        )
    names = [path.name.removesuffix(".gz") for path in files]
    classes = [Path(name).stem for name in names]
    if len(set(classes)) < len(classes):  # rt-polarity.pos and rt-polarity.neg
        classes = [Path(name).suffix.removeprefix(".") if Path(name).suffix != ".txt" else "" for name in names]
    if len(set(classes)) < len(classes):
        raise DataError(f"two files are named {names[0]}: the name of a text file is its class, so give each its own")
    rows = [
        (line.strip(), label)
        for path, label in zip(files, classes, strict=True)
        for _, line in read_lines(path)
        if line.strip()
    ]
    return TextRows(rows, notes=(f"a class per file ({', '.join(classes)[:200]}), one text per line",))


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
