"""Token tables: bytes of each token in every kind of vocabulary, what rebuilds the text, and the command."""

from __future__ import annotations

import io
import json
import sys

import pytest
from tokenizers import Tokenizer as Engine
from tokenizers import decoders, models, normalizers, pre_tokenizers

from runs_on_disk import gpt2, write_run
from weft.cli.main import app
from weft.cli.terminal import quoted, visible
from weft.data.tokenizers.token_table import TokenBytes, tabulate_tokens, token_names
from weft.data.tokenizers.tokenizer import Tokenizer, train_tokenizer
from weft.foundation.errors import WeftError

BYTES = train_tokenizer("bytes", [])
EMOJI = "a 😀\n"


@pytest.fixture
def run(capsys, monkeypatch):
    """`run("tokens", ...)` gives (exit code, stdout, stderr)."""
    monkeypatch.delenv("WEFT_DEBUG", raising=False)

    def call(*words, lines=None):
        monkeypatch.setattr(sys, "stdin", lines if lines is None else io.StringIO(lines))
        with pytest.raises(SystemExit) as stopped:
            app([str(word) for word in words], prog_name="weft")
        return stopped.value.code or 0, *capsys.readouterr()

    return call


def sentencepiece() -> Tokenizer:
    """Llama's kind: a mark for spaces, and bytes for what the vocabulary lacks."""
    names = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "a", "▁a", "b"]
    engine = Engine(
        models.BPE(vocab={name: n for n, name in enumerate(names)}, merges=[("▁", "a")], byte_fallback=True)
    )
    engine.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    engine.decoder = decoders.Sequence(steps)
    return Tokenizer(engine)


def wordpiece() -> Tokenizer:
    names = ["[UNK]", "un", "##able", "able"]
    engine = Engine(models.WordPiece(vocab={name: n for n, name in enumerate(names)}, unk_token="[UNK]"))
    engine.normalizer, engine.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    engine.decoder = decoders.WordPiece()
    engine.add_special_tokens(["[UNK]"])
    return Tokenizer(engine)


def words_of(table):
    return [(row.token, row.bytes) for row in table.rows]


# --- tables ---


def test_bytes_of_byte_level_tokens_are_those_of_the_text():
    bpe = train_tokenizer("bpe", ["the cat sat on the mat"] * 7, 300)
    for tokenizer in (BYTES, bpe):
        for text in ("", "the cat", EMOJI, "naïve \x1b[31m \x00\u200b漢字", "the<stop>"):
            table = tabulate_tokens(tokenizer, text)
            assert b"".join(row.bytes for row in table.rows) == text.encode()
            assert table.round_trip and table.rebuilt == text and table.size == len(text.encode())
            assert [row.id for row in table.rows] == tokenizer.encode(text)
            assert [row.special for row in table.rows] == [row.token == "<stop>" for row in table.rows]
            assert all(text[row.start : row.end].encode().find(row.bytes) >= 0 for row in table.rows)
    table = tabulate_tokens(BYTES, EMOJI)
    assert [row.bytes for row in table.rows] == [bytes([byte]) for byte in EMOJI.encode()]
    assert table.bytes_per_token == 1.0 and tabulate_tokens(BYTES, "").bytes_per_token is None


def test_bytes_of_sentencepiece_tokens():
    table = tabulate_tokens(sentencepiece(), "a aé")
    assert words_of(table) == [("▁a", b" a"), ("▁a", b" a"), ("<0xC3>", b"\xc3"), ("<0xA9>", b"\xa9")]
    assert table.round_trip


def test_unknown_tokens_stand_for_the_text_that_they_hide():
    table = tabulate_tokens(wordpiece(), "Unable 漢")
    assert words_of(table) == [("un", b"un"), ("##able", b"able"), ("[UNK]", "漢".encode())]
    assert [row.unknown for row in table.rows] == [False, False, True] and not table.rows[-1].special
    assert not table.round_trip and table.rebuilt == "unable [UNK]"
    letters = train_tokenizer("characters", ["abc"])
    table = tabulate_tokens(letters, "axb")
    assert [row.unknown for row in table.rows] == [False, True, False] and table.rows[1].bytes == b"x"
    written = tabulate_tokens(letters, "a<unknown>")
    assert [(row.special, row.unknown) for row in written.rows] == [(False, False), (True, False)]
    words = tabulate_tokens(train_tokenizer("words", ["a small house"]), "a  big house")
    assert [row.bytes for row in words.rows] == [b"a", b"big", b"house"] and not words.round_trip


def test_marks_of_old_vocabularies():
    engine = Engine(models.BPE(vocab={"lo": 0, "w</w>": 1, "w": 2}, merges=[]))
    engine.decoder = decoders.BPEDecoder()
    table = TokenBytes(Tokenizer(engine))
    assert [table.of(index) for index in range(3)] == [b"lo", b"w ", b"w"]
    foreign = train_tokenizer("bytes", [])
    foreign.engine.add_tokens(["漢"])  # not a letter of any byte
    assert TokenBytes(foreign).of(foreign.id_of("漢")) == "漢".encode()


def test_names_of_incomplete_characters_differ():
    ids = BYTES.encode("é€")
    assert token_names(BYTES, ids) == ["\\xc3", "\\xa9", "\\xe2", "\\x82", "\\xac"]
    assert token_names(BYTES, BYTES.encode("a ")) == ["a", " "]
    whole = train_tokenizer("characters", ["\ufffd"])
    assert token_names(whole, whole.encode("\ufffd")) == ["\ufffd"]


def test_text_that_is_no_unicode_is_named():
    for call in (lambda text: tabulate_tokens(BYTES, text), BYTES.encode):
        with pytest.raises(WeftError, match=r"'a\\udcff' is not UTF-8 text: convert it first"):
            call("a\udcff")


def test_what_cannot_be_seen_is_shown():
    assert visible("a b\n\t\x1b\x7f\x00") == "a␣b␊␉␛␡␀"
    assert visible("\u200b\u00a0é😀") == "\\u200b\\xa0é😀" and visible("\u0301") == "◌\u0301"
    assert quoted("a b\n\x1b\\xe4") == "'a b\\n\\x1b\\xe4'"


# --- the command ---


def test_tokens_of_a_run_a_file_and_a_kind(run, tmp_path):
    folder = write_run(tmp_path / "run", gpt2(BYTES.vocabulary), "text", BYTES)
    BYTES.save(tmp_path / "other.json")
    expected = [
        ["0", "68", "a", "61"],
        ["1", str(BYTES.encode(" ")[0]), "␣", "20"],
        *([str(n + 2), str(BYTES.encode(EMOJI)[n + 2]), f"\\x{byte:02x}", f"{byte:02x}"] for n, byte in
          enumerate("😀".encode())),
        ["6", str(BYTES.encode("\n")[0]), "␊", "0a"],
    ]  # fmt: skip
    for name in (folder, tmp_path / "other.json", folder / "tokenizer.json", "bytes"):
        code, out, err = run("tokens", name, EMOJI)
        assert code == 0 and err == "" and [line.split("\t") for line in out.splitlines()[:-1]] == expected
        assert out.splitlines()[-1] == "4 characters, 7 bytes, 7 tokens, 1.00 bytes per token (vocabulary 260)"


def test_json_has_all_of_it(run):
    code, out, _ = run("tokens", "bytes", "é<stop>", "--json")
    found = json.loads(out)
    assert code == 0 and found["counts"] == {"characters": 7, "bytes": 8, "tokens": 3}
    assert [row["bytes"] for row in found["tokens"]] == [[195], [169], list(b"<stop>")]
    assert [row["text"] for row in found["tokens"]] == ["\\xc3", "\\xa9", "<stop>"]
    assert found["tokens"][2]["special"] and (found["tokens"][2]["start"], found["tokens"][2]["end"]) == (1, 7)
    assert found["round_trip"] and found["rebuilt"] == found["text"] == "é<stop>" and found["vocabulary"] == 260
    code, out, _ = run("tokens", "bytes", "", "--json")
    assert code == 0 and json.loads(out)["tokens"] == [] and json.loads(out)["bytes_per_token"] is None


def test_a_text_that_changes_is_said(run, tmp_path):
    wordpiece().save(tmp_path / "words.json")
    code, out, _ = run("tokens", tmp_path / "words.json", "Unable 漢")
    assert code == 0 and "2\t0\t漢 ([UNK])\te6 bc a2\n" in out
    assert "1 unknown: the vocabulary lacks them\nthe ids give another text back: 'unable [UNK]'\n" in out


def test_texts_from_files_and_stdin_are_read_as_they_are(run, tmp_path):
    (tmp_path / "a.txt").write_bytes(b"a\r\nb\n")
    code, out, _ = run("tokens", "bytes", "--file", tmp_path / "a.txt", "--json")
    assert code == 0 and json.loads(out)["text"] == "a\r\nb\n"
    code, out, _ = run("tokens", "bytes", "--json", lines="x\ny\n")
    assert code == 0 and json.loads(out)["text"] == "x\ny\n"


def test_a_terminal_gets_a_table(run, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "80")
    code, out, _ = run("tokens", "bytes", "a\x1b")
    assert code == 0 and "token" in out.splitlines()[0] and "␛" in out and "a\x1b" not in out


def test_errors_name_the_remedy(run, tmp_path):
    (tmp_path / "bad.txt").write_bytes(b"\xff")
    folder = write_run(tmp_path / "run", gpt2(7), "forecast")
    for words, sentence in (
        (("absent", "x"), "there is no tokenizer at absent"),
        (("words", "x"), "a tokenizer of words is learned from texts: give a run"),
        ((tmp_path, "x"), "holds no tokenizer"),
        ((folder, "x"), "is a run of task forecast without a tokenizer: give a run that reads or writes text"),
        (("bytes", "x", "--file", "y"), "a text and --file: give one of them"),
        (("bytes", "--file", tmp_path / "bad.txt"), "bad.txt is not UTF-8 text: convert it first"),
        (("bytes", "--file", tmp_path / "none.txt"), "No such file"),
        (("bytes",), "no text: give one"),
        (("bytes", "a\udcff"), "is not UTF-8: convert it"),
    ):
        code, out, err = run("tokens", *words)
        assert (code, out) == (2, "") and sentence in err and err.count("\n") == 1, err
