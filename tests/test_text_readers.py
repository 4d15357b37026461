"""The readers of files and texts: what they give, and every sentence they refuse with."""

from __future__ import annotations

import builtins
import gzip
import json
import sys
from types import ModuleType, SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.data.readers.files import (
    DataError,
    find_files,
    name_suffix,
    open_bytes,
    read_fields,
    read_lines,
    read_table,
    read_text,
)
from weft.data.readers.tables import TableOptions, open_table
from weft.data.readers.texts import Chat, expect_classes, read_documents, read_labeled, read_pairs, read_tagged


def refuses(sentence, call, *arguments, **named):
    with pytest.raises(DataError) as caught:
        list(call(*arguments, **named))
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.fixture
def put(tmp_path):
    def write(name, content):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        data = content if isinstance(content, bytes) else content.encode()
        path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
        return path

    return write


# --- files ---


def test_files_are_found_in_a_fixed_order(put, tmp_path):
    for name in ("in/b.txt", "in/a.TXT", "in/deep/c.txt.gz", "in/d.png"):
        put(name, "x")
    assert [path.name for path in find_files([tmp_path / "in"], (".txt",))] == ["a.TXT", "b.txt", "c.txt.gz"]
    assert find_files([tmp_path / "in/d.png"], (".txt",)) == [tmp_path / "in/d.png"]
    assert name_suffix(tmp_path / "a.TSV.gz") == ".tsv"
    refuses("holds no .csv or .tsv file: give a folder that does", find_files, [tmp_path / "in"], (".csv", ".tsv"))
    refuses("there is no file", find_files, [tmp_path / "none.txt"], (".txt",))
    refuses("cannot open", open_bytes, tmp_path / "none.txt")


def test_lines_lose_their_ends_and_the_mark_at_the_start(put):
    path = put("a.txt.gz", b"\xef\xbb\xbfone\r\n\ntwo \xe2\x80\xa8 three")
    assert list(read_lines(path)) == [(1, "one"), (2, ""), (3, "two \u2028 three")]
    assert read_text(path) == "one\n\ntwo \u2028 three\n"


def test_unreadable_files_are_named_with_the_line(put, tmp_path):
    refuses("a.txt, line 2: byte 0xe9 is not UTF-8; save the file", read_lines, put("a.txt", b"fine\ncaf\xe9\n"))
    refuses("byte 0xff is not UTF-8", read_lines, put("b.txt", b"\xffa"))
    refuses("c.txt is empty: give a file with data", read_lines, put("c.txt", ""))
    refuses("d.txt.gz is empty", read_lines, put("d.txt.gz", ""))
    whole = put("e.txt.gz", "line of text\n" * 1000).read_bytes()
    (tmp_path / "cut.txt.gz").write_bytes(whole[: len(whole) // 2])
    refuses("cut.txt.gz cannot be read to its end after line", read_lines, tmp_path / "cut.txt.gz")
    (tmp_path / "plain.txt.gz").write_bytes(b"not packed")
    refuses("plain.txt.gz cannot be read to its end", read_lines, tmp_path / "plain.txt.gz")
    (tmp_path / "bad.txt.gz").write_bytes(whole[:10] + b"\xff" * 40 + whole[50:])
    refuses("bad.txt.gz cannot be read to its end", read_lines, tmp_path / "bad.txt.gz")


def test_tables_by_name_number_or_whole(put):
    path = put("a.csv", 'text,id,label\n"a, ""b""\nc",1,x\n\nd,2,y\n')
    table = open_table(path)
    assert table.names == ("text", "id", "label") and len(table.notes) == 1
    for columns in (["label", "text"], ["3", "1"]):
        assert list(table.read(table.places(columns))) == [(2, ["x", 'a, "b"\nc']), (5, ["y", "d"])]
    assert len(list(read_table(path))) == 3
    assert list(read_table(put("a.tsv", 'say "hi\t1\r\nb\rc\t2\n'))) == [(1, ['say "hi', "1"]), (2, ["b\rc", "2"])]
    refuses("a.csv has no column 'tag': it has text, id, label", open_table, path, TableOptions(("tag",)))
    refuses("a.csv has no column '4'", lambda: table.places(["4"]))
    refuses("a.csv has no column '²'", lambda: table.places(["²"]))


def test_ragged_and_ill_quoted_rows_are_named(put):
    refuses("a.csv, line 3: 3 cells, but the first line has 2", read_table, put("a.csv", "a,b\nc,d\ne,f,g\n"))
    refuses("a.tsv, line 2: 1 cells, but the first line has 2", read_table, put("a.tsv", "a\tb\nc\n"))
    refuses("b.csv, line 2: unexpected end of data; double", read_table, put("b.csv", 'a,b\n"c,d\ne,f\n'))


def test_long_cells_are_read(put):
    for name, mark in (("a.csv", ","), ("a.tsv", "\t")):
        assert len(next(read_table(put(name, "x" * 200_000 + mark + "1\n")))[1][0]) == 200_000


def test_jsonl_fields_keep_their_column(put):
    path = put("a.jsonl", '{"en": "a", "de": "b"}\n\n{"de": "d", "en": "c"}\n')
    assert list(read_table(path)) == [(1, ["a", "b"]), (3, ["c", "d"])]
    refuses("line 1: there is no field 'fr'; it has en, de", read_fields, path, ["fr"])
    refuses("a.jsonl has no column 'fr': it has en, de", lambda: open_table(path).places(["fr"]))
    refuses("b.jsonl, line 2: not JSON", read_table, put("b.jsonl", "{}\n{a}\n"))
    refuses("c.jsonl, line 1: a JSON object is expected, not a list", read_table, put("c.jsonl", "[1]\n"))
    refuses("line 1: field 'a' is null, but a text is needed", read_table, put("d.jsonl", '{"a": null}\n'))


# --- documents and chats ---


def test_documents_of_every_kind(put, tmp_path):
    put("a.txt", "one\ntwo")
    put("b.jsonl", '{"text": "three"}\n{"content": "four"}\n')
    turns = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]
    put("c.jsonl.gz", json.dumps({"messages": turns}) + "\n")
    documents = list(read_documents([tmp_path]))
    assert documents == ["one\ntwo\n", "three", "four", Chat((("user", "hi"), ("assistant", "ho")))]


@pytest.mark.parametrize(
    ("row", "sentence"),
    [
        ({"words": "a"}, "line 1: no text; a field named text or messages is expected"),
        ({"text": 3}, "line 1: no text"),
        ({"messages": []}, "line 1: messages must be a list of role and content"),
        ({"messages": ["hi"]}, "line 1: a message has a role of system, user, assistant and a content"),
        ({"messages": [{"role": "cat", "content": "miau"}]}, "a message has a role of"),
        ({"messages": [{"role": "user", "content": None}]}, "a message has a role of"),
    ],
)
def test_documents_without_text(put, row, sentence):
    refuses(sentence, read_documents, [put("a.jsonl", json.dumps(row))])


def test_parquet(put, monkeypatch):
    path = put("a.parquet", b"?")
    real = builtins.__import__

    def without(name, *rest):
        if name.startswith("pyarrow"):
            raise ImportError
        return real(name, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(builtins, "__import__", without)
        refuses("a.parquet needs the package pyarrow: pip install pyarrow", read_documents, [path])

    class File:
        def __init__(self, path, page_checksum_verification):
            if path.name == "bad.parquet":
                raise ValueError("magic bytes not found")
            self.schema_arrow = SimpleNamespace(names=["text"] if path.name == "a.parquet" else ["words"])

        def iter_batches(self, columns):
            yield SimpleNamespace(column=lambda _: SimpleNamespace(to_pylist=lambda: ["one", None, "two"]))

    pyarrow = ModuleType("pyarrow")
    pyarrow.parquet = SimpleNamespace(ParquetFile=File)
    monkeypatch.setitem(sys.modules, "pyarrow", pyarrow)
    assert list(read_documents([path])) == ["one", "two"]
    refuses("b.parquet has no column text: it has words", read_documents, [put("b.parquet", b"?")])
    refuses("bad.parquet is not a readable .parquet file", read_documents, [put("bad.parquet", b"?")])


# --- pairs ---

SOURCE_TARGET, FROM_TO = TableOptions(("source", "target")), TableOptions(("from", "to"))


def test_pairs_from_tables_and_parallel_files(put, tmp_path):
    expected = [("a b", "c"), ("d", "e, f")]
    assert read_pairs([put("a.tsv", "a b\tc\nd\te, f\n\t\n")]).rows == expected
    assert read_pairs([put("a.csv", 'a b,c\nd,"e, f"\n')]).rows == expected
    assert read_pairs([put("b.csv", 'n,to,from\n1,c,a b\n2,"e, f",d\n')], FROM_TO).rows == expected
    rows = "".join(json.dumps({"id": 1, "from": a, "to": b}) + "\n" for a, b in expected)
    assert read_pairs([put("a.jsonl.gz", rows)], FROM_TO).rows == expected
    source, target = put("x.en.gz", "a b\n\nd\n"), put("x.de", "c\n\ne, f\n")
    assert read_pairs([source, target]).rows == expected
    put("folder/1.tsv", "a b\tc\n"), put("folder/2.tsv", "d\te, f\n")
    assert read_pairs([tmp_path / "folder"]).rows == expected


def test_pairs_that_are_none(put):
    one, two = put("x.en", "a\nb\n"), put("x.de", "a\n")
    refuses("x.en has 2 lines and x.de 1: parallel files need a line in one for each", read_pairs, [one, two])
    refuses("1 text files: parallel texts are two files", read_pairs, [one])
    refuses(
        "a.tsv has 3 columns (1, 2, 3), but source and target are two: choose, such as --set data.columns=1,2",
        read_pairs,
        [put("a.tsv", "a\tb\tc")],
    )
    refuses("a.tsv has no column 'source'", read_pairs, [put("a.tsv", "a\tb\n")], SOURCE_TARGET)
    refuses("b.tsv hold no pair of texts", read_pairs, [put("b.tsv", "source\ttarget\n")], SOURCE_TARGET)
    refuses("y.en and y.de hold no pair of texts", read_pairs, [put("y.en", "\n"), put("y.de", "\n")])


@given(st.lists(st.tuples(*[st.text(st.characters(exclude_categories=("C", "Z")), min_size=1)] * 2), min_size=1))
def test_pairs_come_back_from_jsonl(tmp_path_factory, pairs):
    path = tmp_path_factory.mktemp("pairs") / "a.jsonl"
    path.write_text("".join(json.dumps({"a": a, "b": b}) + "\n" for a, b in pairs))
    assert read_pairs([path]).rows == pairs


# --- labels ---


def test_labels_with_and_without_names(put):
    rows = [("good", "1"), ("bad", "0"), ("fine", "1"), ("poor", "0")]
    lines = [f"{text}\t{label}\n" for text, label in rows]
    assert read_labeled([put("a.tsv", "".join(lines))]).rows == rows
    assert read_labeled([put("b.tsv", "review\tSentiment\n" + "".join(lines))]).rows == rows
    turned = "".join(f"{label},{text}\n" for text, label in rows)
    assert read_labeled([put("c.csv", "label,text\n" + turned)]).rows == rows
    assert read_labeled([put("d.csv", turned)], TableOptions(("2", "1"))).rows == rows
    fields = "".join(json.dumps({"label": int(label), "id": 3, "sentence": text}) + "\n" for text, label in rows)
    assert read_labeled([put("e.jsonl", fields)]).rows == rows


def test_labels_that_cannot_be_learned(put):
    three = put("a.csv", "a,b,c\n")
    refuses("a.csv has 3 columns (1, 2, 3), but text and label are two: choose, such as --set", read_labeled, [three])
    refuses("there is only one label ('x')", read_labeled, [put("b.csv", "a,x\nb,x\n")])
    refuses("label 'y' has one example: give it more, or leave it out", read_labeled, [put("c.csv", "a,x\nb,x\nc,y\n")])
    refuses("d.csv, line 2: the label is empty", read_labeled, [put("d.csv", "a,x\nb, \n")])
    refuses("there is no labeled example", read_labeled, [put("e.csv", "text,label\n")])
    refuses("a.csv has no column 'text'", read_labeled, [three], TableOptions(("text", "label")))
    refuses("there is no labeled example", lambda: expect_classes([]))


# --- tags ---

CONLLU = """# newdoc
# text = It's\t"late"
1-2\tIt's\t_\t_\t_\t_\t_\t_\t_\t_
1\tIt\tit\tPRON\tPRP\t_\t3\tnsubj\t_\t_
2\t's\tbe\tAUX\tVBZ\t_\t3\tcop\t_\t_
2.1\tso\tso\tADV\t_\t_\t_\t_\t_\t_
3\tNew York\tlate\tADJ\tJJ\t_\t0\troot\t_\t_

# text = #
1\t#\t#\tSYM\tNN\t_\t0\troot\t_\t_
"""


def test_conllu_leaves_out_ranges_and_empty_nodes(put):
    path = put("a.conllu.gz", CONLLU)
    expected = [(["It", "'s", "New York"], ["PRON", "AUX", "ADJ"]), (["#"], ["SYM"])]
    assert read_tagged([path]) == expected
    assert [tags for _, tags in read_tagged([path], column=5)] == [["PRP", "VBZ", "JJ"], ["NN"]]


@pytest.mark.parametrize("mark", ["\t", " "])
def test_two_columns(put, mark):
    lines = ["-DOCSTART-|O", "", "# a comment of words", "Ann|B-PER", "Lee|I-PER", "#|O", "", "  ", "#luck|O", "sat|O"]
    found = read_tagged([put("a.bio", "\n".join(lines).replace("|", mark))])
    assert found == [(["Ann", "Lee", "#"], ["B-PER", "I-PER", "O"]), (["#luck", "sat"], ["O", "O"])]


def test_tags_that_are_missing(put):
    refuses("a.conll, line 2: 1 columns, but a word and its tag are needed", read_tagged, [put("a.conll", "a X\nb\n")])
    refuses("line 1: 2 columns", read_tagged, [put("b.conll", "a X\n")], column=4)
    refuses(
        "c.conll has no tagged word: lines of word and tag, or CoNLL-U", read_tagged, [put("c.conll", "# nothing\n\n")]
    )
