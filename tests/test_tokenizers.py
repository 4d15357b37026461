from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

import weft
from weft.data.tokenizers.tokenizer import TOKENIZER_KINDS, Tokenizer, load_tokenizer, train_tokenizer
from weft.inference.decoding.detokenizer import Detokenizer

SHARED = Path(__file__).parents[2] / "shared" / "data" / "tokenizers"
TEXT = "The cat sat on the mat. Don't stop!\n naïve 日本 🙂"


@pytest.mark.parametrize("kind", TOKENIZER_KINDS)
def test_trained_tokenizers_come_back_from_disk(kind, tmp_path):
    tokenizer = train_tokenizer(kind, [TEXT] * 3, vocabulary=300, special_tokens=["<User:>"])
    ids = tokenizer.encode("<User:>" + TEXT)
    assert ids[0] == tokenizer.id_of("<User:>")
    if kind != "words":
        assert tokenizer.decode(ids, keep_special=True) == "<User:>" + TEXT
        assert tokenizer.decode(ids) == TEXT
    else:
        assert tokenizer.decode(ids) == "The cat sat on the mat . Don ' t stop ! naïve 日本 🙂"
    tokenizer.save(tmp_path / "tokenizer.json")
    again = load_tokenizer(tmp_path)
    assert again.encode(TEXT) == tokenizer.encode(TEXT) and again.vocabulary == tokenizer.vocabulary
    assert (again.pad, again.start, again.stop) == (0, 1, 2)
    assert tokenizer.encode_many([TEXT, "the"]) == [tokenizer.encode(TEXT), tokenizer.encode("the")]
    assert len(tokenizer.pieces(ids)) == len(ids)


@pytest.mark.parametrize("kind", ["bytes", "bpe"])
def test_bytes_know_every_text(kind):
    tokenizer = train_tokenizer(kind, ["abc abc"])
    for text in ("zebra", "ſ\x00\u2028", "مرحبا", " lead", "trail "):
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_unknown_characters_and_words_have_a_token():
    for kind in ("characters", "words"):
        tokenizer = train_tokenizer(kind, ["ab ab"])
        assert tokenizer.encode("z") == [tokenizer.role("unknown")]


def test_merges_reach_the_vocabulary_asked_for():
    tokenizer = train_tokenizer("bpe", ["low lower lowest newest widest"] * 20, vocabulary=270)
    assert tokenizer.vocabulary <= 270 and len(tokenizer.encode("lowest")) < 6


def test_gpt2_files(tmp_path):
    (tmp_path / "vocab.json").write_text(json.dumps({"a": 0, "b": 1, "ab": 2, "Ġ": 3, "Ġab": 4, "<|endoftext|>": 5}))
    with pytest.raises(weft.WeftError, match="needs its merges beside it"):
        load_tokenizer(tmp_path)
    (tmp_path / "merges.txt").write_text("#version: 0.2\na b\nĠ ab\n")
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.encode("ab ab") == [2, 4] and tokenizer.decode([2, 4]) == "ab ab" and tokenizer.stop == 5


def test_bert_files(tmp_path):
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nplay\n##ing\n")
    tokenizer = load_tokenizer(tmp_path / "vocab.txt")
    assert tokenizer.encode("Playing chess") == [5, 6, 1]
    assert (tokenizer.pad, tokenizer.start, tokenizer.stop) == (0, 2, 3)


def sentencepiece(pieces, model_type=2) -> bytes:
    def message(number, data):
        return bytes([number << 3 | 2, len(data)]) + data

    out = b""
    for piece, score, kind in pieces:
        inner = message(1, piece.encode()) + bytes([2 << 3 | 5]) + struct.pack("<f", score) + bytes([3 << 3, kind])
        out += message(1, inner)
    return out + message(2, bytes([3 << 3, model_type]))


def test_sentencepiece_files(tmp_path):
    pieces = [("<unk>", 0, 2), ("<s>", 0, 3), ("</s>", 0, 3), ("▁a", -1, 1), ("▁", -2, 1), ("a", -3, 1), ("b", -4, 1)]
    for model_type in (1, 2):
        (tmp_path / "tokenizer.model").write_bytes(sentencepiece(pieces, model_type))
        tokenizer = load_tokenizer(tmp_path)
        assert tokenizer.encode("ab a") == [3, 6, 3] and tokenizer.decode([3, 6, 3]) == "ab a"
        assert (tokenizer.start, tokenizer.stop) == (1, 2)


@pytest.mark.parametrize(
    "content", [b"", b"\xff\xff\xff\xff", b"\x0a\x7f\x01", b"hello world", bytes([8] + [255] * 12)]
)
def test_broken_sentencepiece_files_are_refused(tmp_path, content):
    path = tmp_path / "tokenizer.model"
    path.write_bytes(content)
    with pytest.raises(weft.WeftError, match="not a SentencePiece model"):
        load_tokenizer(path)


def test_other_errors(tmp_path):
    with pytest.raises(weft.WeftError, match="no text to learn"):
        train_tokenizer("bpe", [])
    with pytest.raises(weft.WeftError, match="choose one of characters"):
        train_tokenizer("nonsense", ["a"])
    with pytest.raises(weft.WeftError, match="holds no tokenizer"):
        load_tokenizer(tmp_path)
    with pytest.raises(weft.WeftError, match="there is no tokenizer"):
        load_tokenizer(tmp_path / "nowhere")
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(weft.WeftError, match="not a readable tokenizer"):
        load_tokenizer(tmp_path)


@pytest.mark.skipif(not SHARED.exists(), reason="the golden pairs are not part of the project")
@pytest.mark.parametrize(("name", "folder"), [("llama-spm", "llama2"), ("gpt-2", "gpt2")])
def test_golden_pairs(name, folder):
    tokenizer = load_tokenizer(SHARED / folder)
    texts = (SHARED / f"ggml-vocab-{name}.gguf.inp").read_text(encoding="utf-8").split("\n__ggml_vocab_test__\n")
    lines = (SHARED / f"ggml-vocab-{name}.gguf.out").read_text().split("\n")
    for text, line in zip(texts, lines, strict=False):
        assert tokenizer.encode(text) == [int(word) for word in line.split()], text
    assert len(texts) > 40


def test_what_goes_on_after_a_text_keeps_its_space():
    """SentencePiece writes a space as a part of the word after it, and leaves out a text's first one."""
    from weft.data.tokenizers.sentencepiece import BPE, NORMAL, UNKNOWN, SentencePieceModel
    from weft.data.tokenizers.vocabulary_files import from_sentencepiece

    letters = [("<unk>", 0.0, UNKNOWN), *((sign, 0.0, NORMAL) for sign in "▁abc"), ("▁a", -1.0, NORMAL)]
    tokenizer = Tokenizer(from_sentencepiece(SentencePieceModel(letters, BPE, True)))
    before, after = tokenizer.encode("ab"), tokenizer.encode("a cab")[1:]
    assert tokenizer.decode(after) == "cab" and Detokenizer(tokenizer).decode(after, before) == " cab"
    stream = Detokenizer(tokenizer).stream(before)
    assert "".join([*map(stream.feed, after), stream.finish()]) == " cab"
    assert Detokenizer(tokenizer).decode(tokenizer.encode("a cab")) == "a cab"
    assert tokenizer.pieces(tokenizer.encode("ab a")) == [" a", "b", " a"]
