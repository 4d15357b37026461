"""The token store: the tokenizer's own ids, whole files or none, and memory that does not grow with the text."""

from __future__ import annotations

import errno
import gzip
import json
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Engine
from tokenizers import models, normalizers, pre_tokenizers

from weft.data.readers.files import DataError, read_blocks, read_lines
from weft.data.stores import store_files as shard_files
from weft.data.stores import text_chunks as pieces
from weft.data.stores.text_chunks import (
    TextChunk,
    chunk_text,
    distinct_characters,
    has_chats,
    read_chunks,
    sample_texts,
)
from weft.data.stores.token_store import CHAT_TOKENS, TokenStore, open_token_store
from weft.data.tokenizers import bulk_encoding
from weft.data.tokenizers.bulk_encoding import adds_dummy_prefix, bulk_encoder
from weft.data.tokenizers.tokenizer import STOP, TOKENIZER_KINDS, Tokenizer, train_tokenizer

SEED_TEXT = "The cat sat on the mat.\nIt's 1,234 o'counter — l'été déjà !\n\n  indented  twice\tand tabs é😀\n" * 3
TOKENIZERS = {kind: train_tokenizer(kind, [SEED_TEXT], 400, special_tokens=CHAT_TOKENS) for kind in TOKENIZER_KINDS}
WORDS = ["cat", "dog's", "l'été", "1,234", "…", "中文", "é", "x_y", "(the", "the", "<stop>", "<User:>", "<stop"]
SPACES = [" ", "\n", "  ", "   ", " \n", "\n\n ", "\t", "\x1c", "\u2028", "\x85", "", "\u3000", "\n\n\n"]
messy = st.lists(st.sampled_from(WORDS + SPACES) | st.text(max_size=5), max_size=31).map("".join)


@pytest.fixture
def put(tmp_path):
    def write(name, content):
        path = tmp_path / name
        data = content if isinstance(content, bytes) else content.encode()
        path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
        return path

    return write


def rows(*documents):
    return "".join(json.dumps(d if isinstance(d, dict) else {"text": d}) + "\n" for d in documents)


def chat(*turns):
    return {"messages": [{"role": role, "content": content} for role, content in turns]}


def prose(count, seed=7):
    drawn = np.random.default_rng(seed).integers(0, 997, count)
    return "".join(f"w{n:x}{'.' if n % 11 == 0 else ''}{chr(10) if n % 17 == 0 else ' '}" for n in drawn) + "end\n"


# --- reading in blocks and pieces ---


@settings(max_examples=150, deadline=None)
@given(
    text=st.text(st.sampled_from("ab\r\n é😀\ufeff\u2028"), min_size=1, max_size=23), size=st.sampled_from([1, 2, 3, 7])
)
def test_blocks_make_up_the_lines(text, size):
    assume(text != "\ufeff")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.txt"
        path.write_bytes(text.encode())
        lines = "\n".join(line for _, line in read_lines(path)) + "\n"
        assert "".join(read_blocks(path, size)) == lines


@pytest.mark.parametrize("content", [b"", "\ufeff".encode(), "\ufeff".encode("utf-16-le")])
def test_a_mark_of_byte_order_alone_is_nothing(put, content):
    for read in (read_lines, read_blocks):
        with pytest.raises(DataError, match=r"a\.txt is empty"):
            list(read(put("a.txt", content)))


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_blocks_name_the_line_of_a_bad_byte(put, size):
    with pytest.raises(DataError, match=r"a.txt, line 3: byte 0xe9 is not UTF-8; save the file as UTF-8"):
        list(read_blocks(put("a.txt", b"one\ntwo\ncaf\xe9\nmore\n"), size))
    with pytest.raises(DataError, match=r"b.txt, line 2: byte 0xc3 is not UTF-8"):
        list(read_blocks(put("b.txt", b"one\ncaf\xc3"), size))


@settings(max_examples=150, deadline=None)
@given(text=messy, size=st.sampled_from([2, 5, 13]), block=st.sampled_from([1, 3, 31]))
def test_cut_texts_lose_nothing(text, size, block):
    parts = list(chunk_text([text[i : i + block] for i in range(0, len(text), block)], size))
    assert "".join(parts) == text
    assert all(0 < len(part) <= size for part in parts)


def test_cuts_fall_between_words_where_they_can():
    assert list(chunk_text(["one two, (three)"], 9)) == ["one", " two,", " (three)"]
    assert list(chunk_text(["x.\ny end.\n\nz"], 8)) == ["x.\ny", " end.\n\nz"]
    assert list(chunk_text(["one two\nsix"], 9)) == ["one", " two\nsix"]
    assert list(chunk_text(["abcdefg"], 3)) == ["abc", "def", "g"]


def test_pieces_of_documents_and_turns(put, tmp_path):
    put("a.txt", "one two three\n")
    put("b.jsonl", rows("four", "", "five six", chat(("user", ""), ("assistant", "seven eight"))))
    assert list(read_chunks([tmp_path], 8)) == [
        TextChunk(0, "one two", None, True, False),
        TextChunk(0, " three\n", None, False, True),
        TextChunk(1, "four"),
        TextChunk(2, "five six"),
        TextChunk(3, "", "user"),
        TextChunk(3, "seven", "assistant", True, False),
        TextChunk(3, " eight", "assistant", False, True),
    ]
    assert has_chats([tmp_path]) and not has_chats([tmp_path / "a.txt"])
    assert not has_chats([put("c.jsonl", rows("no messages"))])


def test_samples_are_even_and_bounded(put):
    text = "".join(f"{n:05d} word\n" for n in range(1009))
    for path in (put("a.txt", text), put("b.txt.gz", text)):
        assert "".join(sample_texts([path], None)) == text == "".join(sample_texts([path], len(text)))
        drawn = list(sample_texts([path], len(text) // 5, size=101))
        assert drawn == list(sample_texts([path], len(text) // 5, size=101))
        assert 0.9 * len(text) / 5 < sum(map(len, drawn)) <= len(text) / 5
        places = [text.index(part) / len(text) for part in drawn]
        assert max(np.diff([0, *places, 1])) < 0.08


def test_letters_teach_a_tokenizer_every_character(put):
    text = SEED_TEXT * 31 + "ß\n"
    learned = [
        train_tokenizer("characters", texts) for texts in (distinct_characters([put("a.txt", text)], 101), [text])
    ]
    assert learned[0].engine.get_vocab().keys() == learned[1].engine.get_vocab().keys()
    assert learned[0].decode(learned[0].encode(text)) == text


# --- encoding in bulk ---


@pytest.mark.parametrize("kind", TOKENIZER_KINDS)
@settings(max_examples=150, deadline=None)
@given(texts=st.lists(messy, min_size=1, max_size=5))
def test_bulk_ids_are_the_tokenizers_own(kind, texts):
    tokenizer = TOKENIZERS[kind]
    encode = bulk_encoder(tokenizer)
    assert type(encode) is (bulk_encoding._Table if kind in ("characters", "bytes") else bulk_encoding._Units)
    for _ in range(2):
        flat, counts = encode(texts)
        expected = [tokenizer.encode(text) for text in texts]
        assert counts.tolist() == [len(ids) for ids in expected]
        assert flat.tolist() == [index for ids in expected for index in ids]


@settings(max_examples=500, deadline=None)
@given(text=st.text(" \n\t\0ab_é.1(", max_size=17))
def test_keys_of_units_stand_for_the_units(text):
    keys = bulk_encoding._split_units(text)
    assert [bulk_encoding._unit_of(key) for key in keys] == bulk_encoding.UNIT_BOUNDARY.split(text)


@pytest.mark.parametrize("kind", ["characters", "bytes"])
def test_the_longest_special_token_wins(kind):
    tokenizer = train_tokenizer(kind, [SEED_TEXT], special_tokens=["<stop>>", "<s"])
    text = "a<stop>>b<stop><s<sta<<stop"
    assert bulk_encoder(tokenizer)([text, text]).flat.tolist() == tokenizer.encode(text) * 2


def test_units_are_forgotten_when_there_are_too_many(monkeypatch):
    monkeypatch.setattr(bulk_encoding, "MAX_UNITS", 5)
    encode = bulk_encoder(TOKENIZERS["bpe"])
    for number in range(7):
        text = f"the cat {number} sat on mat {number}"
        assert encode([text]).flat.tolist() == TOKENIZERS["bpe"].encode(text)
    assert len(encode.numbers) < 13


def test_other_tokenizers_go_the_general_way():
    engine = Engine.from_str(TOKENIZERS["characters"].engine.to_str())
    engine.normalizer = normalizers.Lowercase()
    lower = Tokenizer(engine)
    assert bulk_encoder(lower)(["The CAT"]).flat.tolist() == lower.encode("the cat")
    merged = train_tokenizer("bpe", [SEED_TEXT], 400, special_tokens=["two words"])
    assert not isinstance(bulk_encoder(merged), bulk_encoding._Units)
    assert bulk_encoder(merged)(["a  two words b"]).flat.tolist() == merged.encode("a  two words b")


def sentencepiece_like():
    vocabulary = {token: index for index, token in enumerate(["<unk>", "▁", "a", "b", "▁a", "▁b", "ab", "</s>", "\n"])}
    engine = Engine(models.BPE(vocab=vocabulary, merges=[("▁", "a"), ("▁", "b"), ("a", "b")], unk_token="<unk>"))
    engine.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    return Tokenizer(engine)


# --- the store ---


@pytest.mark.parametrize("kind", [*TOKENIZER_KINDS, "sentencepiece"])
def test_one_text_is_one_document_with_the_ids_of_the_whole(kind, put, tmp_path):
    tokenizer = TOKENIZERS.get(kind) or sentencepiece_like()
    text = "ab a b abab " * 61 + "b\n" if kind == "sentencepiece" else SEED_TEXT * 5 + prose(997) + "<stop> end\n"
    assert adds_dummy_prefix(tokenizer) == (kind == "sentencepiece")
    store = open_token_store([put("a.txt", text)], tokenizer, tmp_path / "cache")
    assert store.tokens.tolist() == tokenizer.encode(text)
    assert store.tokens.dtype == np.uint16
    assert store.starts.tolist() == [0] and store.documents == 1 and store.answers is None
    assert store.bytes == len(text.encode()) and store.counted == len(store) == len(store.tokens)
    assert (store.folder / "places.bin").stat().st_size > 3 * 8


def test_a_large_vocabulary_takes_wider_numbers(put, tmp_path):
    tokenizer = Tokenizer(Engine(models.WordLevel({f"w{n}": n for n in range(70_001)}, unk_token="w0")))
    tokenizer.engine.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    store = open_token_store([put("a.txt", "w70000 w3 w65536\n")], tokenizer, tmp_path / "cache")
    assert store.tokens.tolist() == [70_000, 3, 65_536] and store.tokens.dtype == np.uint32


def test_documents_are_parted_by_stop(put, tmp_path):
    tokenizer = TOKENIZERS["bytes"]
    texts = ["one", "two three", "fünf"]
    store = open_token_store([put("a.jsonl", rows(*texts))], tokenizer, tmp_path / "cache")
    ids = [tokenizer.encode(text) for text in texts]
    stop = tokenizer.id_of(STOP)
    assert store.tokens.tolist() == [*ids[0], stop, *ids[1], stop, *ids[2]]
    assert store.starts.tolist() == [0, 4, 14] and store.documents == 3
    assert store.bytes == 3 + 9 + 5
    window = store.window(2, 13)
    assert window.tokens.tolist() == store.tokens[2:15].tolist() and window.tokens.dtype == np.int64
    assert window.documents.tolist() == [0] * 2 + [1] * 10 + [2]
    assert window.answers is None


def test_chats_count_what_the_assistant_says(put, tmp_path):
    tokenizer = TOKENIZERS["bytes"]
    talk = chat(("system", "be"), ("user", "hi"), ("assistant", "hello"), ("user", "?"), ("assistant", "no"))
    path = put("a.jsonl", rows("text", talk, chat(("user", "unheard")), chat(("assistant", "x"))))
    store = open_token_store([path], tokenizer, tmp_path / "cache")
    assert tokenizer.decode(store.tokens.tolist(), keep_special=True) == (
        "text<stop><System:>be<User:>hi<Assistant:>hello<stop><User:>?<Assistant:>no<stop>"
        "<User:>unheard<stop><Assistant:>x<stop>"
    )
    counted = [token for token, flag in zip(store.tokens.tolist(), store.answers.tolist(), strict=True) if flag]
    assert tokenizer.decode(counted, keep_special=True) == "text<stop>hello<stop>no<stop>x<stop>"
    assert store.counted == len(counted) and store.bytes == len("texthellonox")
    assert store.window(5, 17).answers.tolist() == store.answers[5:22].tolist()
    assert store.starts.tolist() == [0, 5, 24, 33]


def test_a_long_answer_is_opened_and_ended_once(put, tmp_path):
    tokenizer, words = TOKENIZERS["bpe"], "one two three " * 53
    store = open_token_store(
        [put("a.jsonl", rows(chat(("user", words), ("assistant", words))))], tokenizer, tmp_path / "c"
    )
    ids, user, assistant = tokenizer.encode(words), tokenizer.id_of("<User:>"), tokenizer.id_of("<Assistant:>")
    assert store.tokens.tolist() == [user, *ids, assistant, *ids, tokenizer.stop]
    assert store.answers.tolist() == [False] * (len(ids) + 2) + [True] * (len(ids) + 1)
    assert (store.folder / "places.bin").stat().st_size > 7 * 8


def test_answers_before_the_first_chat_all_count(put, tmp_path, monkeypatch):
    monkeypatch.setattr(shard_files, "BATCH_CHARACTERS", 53)
    path = put("a.jsonl", rows(*["some text"] * 29, chat(("user", "a"), ("assistant", "b"))))
    store = open_token_store([path], TOKENIZERS["characters"], tmp_path / "cache")
    assert len(store.answers) == len(store) == 29 * 10 + 5
    assert store.answers.tolist() == [True] * 290 + [False, False, False, True, True]
    assert store.counted == 292


def test_chats_need_a_tokenizer_that_knows_their_tokens(put, tmp_path):
    path = put("a.jsonl", rows(chat(("user", "a"))))
    with pytest.raises(DataError, match=r"no token <User:>, which chats need: train one with <System:>, <User:>"):
        open_token_store([path], train_tokenizer("bytes", []), tmp_path / "cache")
    assert not [p for p in (tmp_path / "cache").iterdir() if p.suffix != ".lock"]


def test_texts_that_cannot_be_stored(put, tmp_path):
    with pytest.raises(DataError, match="hold no token: give files with text"):
        open_token_store([put("a.txt", " \n")], TOKENIZERS["words"], tmp_path / "cache")
    for kind in TOKENIZER_KINDS:
        with pytest.raises(DataError, match="line 1: a text holds half of a surrogate pair"):
            open_token_store([put("b.jsonl", '{"text": "\\ud800"}\n')], TOKENIZERS[kind], tmp_path / "cache")
    with pytest.raises(DataError, match="choose another cache folder"):
        open_token_store([put("c.txt", "fine")], TOKENIZERS["bytes"], put("file", "") / "cache")


# --- parts of the store ---


def test_slices_are_stores(put, tmp_path):
    texts = ["aa", "bbb", "ccccc", "ddddddd"]
    whole = open_token_store([put("a.jsonl", rows(*texts))], TOKENIZERS["characters"], tmp_path / "cache")
    part = whole.slice(4, 15)
    assert len(part) == 11 and part.tokens.tolist() == whole.tokens[4:15].tolist()
    assert part.starts.tolist() == [0, 3, 9] and part.documents == 3
    assert part.window(1, 10).documents.tolist() == [0, 0, *[1] * 6, 2, 2]
    again = part.slice(3, 9)
    assert again.starts.tolist() == [0] and again.bytes == 5
    assert pickle.loads(pickle.dumps(again)) == again
    assert part.window(9, 100).tokens.tolist() == whole.tokens[13:15].tolist()
    for call, sentence in (
        (lambda: part.slice(3, 12), "tokens 3 to 12 of 11"),
        (lambda: part.window(11, 2), "a window of 2 tokens at 11 holds none of the 11"),
        (lambda: part.window(-1, 2), "begin it earlier"),
    ):
        with pytest.raises(DataError, match=sentence):
            call()


@pytest.mark.parametrize("kind", TOKENIZER_KINDS)
def test_one_text_is_split_between_words_with_exact_bytes(kind, put, tmp_path):
    text = prose(30_011)
    tokenizer = TOKENIZERS[kind]
    store = open_token_store([put("a.txt", text)], tokenizer, tmp_path / "cache")
    train, held = store.split(0.1)
    assert len(train) + len(held) == len(store) and abs(len(held) / len(store) - 0.1) < 0.001
    cut = len(text) - held.bytes
    assert text[cut] in " \n"
    assert held.tokens.tolist() == tokenizer.encode(text[cut:])
    assert train.bytes == cut


def test_documents_are_split_at_the_nearest_start(put, tmp_path):
    def parts(sizes, share):
        path = put("a.jsonl", rows(*["x" * size for size in sizes]))
        train, held = open_token_store([path], TOKENIZERS["characters"], tmp_path / "cache").split(share)
        return train.bytes, held.bytes

    assert parts([7] * 13, 0.1) == (84, 7)
    assert parts([7] * 13, 0.22) == (70, 21)
    assert parts([50, 50], 0.1) == (50, 50)
    one, other = parts([3, 997], 0.1)
    assert one + other == 1000 and abs(other - 100) <= 50
    tiny = open_token_store([put("b.txt", "ab\n")], TOKENIZERS["characters"], tmp_path / "cache")
    assert [len(part) for part in tiny.split(0.1)] == [2, 1]
    with pytest.raises(DataError, match=r"1 tokens cannot be split"):
        tiny.slice(0, 1).split()


# --- the cache ---


@pytest.fixture
def made(monkeypatch):
    count = []
    real = shard_files._make
    monkeypatch.setattr(shard_files, "_make", lambda *given: count.append(1) or real(*given))
    return count


def test_the_same_content_is_made_once(put, tmp_path, made):
    path, copy = put("a.txt", "some text\n"), put("b.txt", "some text\n")
    first = open_token_store([path], TOKENIZERS["bytes"], tmp_path / "cache")
    assert open_token_store([copy], TOKENIZERS["bytes"], tmp_path / "cache") == first and len(made) == 1
    others = [
        open_token_store([put("b.txt", "same text\n")], TOKENIZERS["bytes"], tmp_path / "cache"),
        open_token_store([path], TOKENIZERS["characters"], tmp_path / "cache"),
        open_token_store([path, path], TOKENIZERS["bytes"], tmp_path / "cache"),
        open_token_store([put("c.md", "some text\n")], TOKENIZERS["bytes"], tmp_path / "cache"),
    ]
    assert len({store.folder for store in [first, *others]}) == 5 == len(made)


@pytest.mark.parametrize("harm", ["cut", "longer", "gone", "no header", "bad header", "other format"])
def test_a_harmed_store_is_made_again(put, tmp_path, made, harm):
    def get():
        return open_token_store([put("a.txt", prose(97))], TOKENIZERS["bytes"], tmp_path / "cache")

    store = get()
    expected = store.tokens.tolist()
    tokens, header = store.folder / "tokens.bin", store.folder / "store.json"
    if harm == "cut":
        os.truncate(tokens, tokens.stat().st_size - 2)
        with pytest.raises(DataError, match=r"tokens.bin of the token store .* is missing or cut off"):
            store.window(len(store) - 5, 5)
    elif harm == "longer":
        tokens.write_bytes(tokens.read_bytes() + b"\0\0")
    elif harm == "gone":
        tokens.unlink()
        for look in (lambda: store.window(0, 3), lambda: store.tokens):
            with pytest.raises(DataError, match="start again to make it"):
                look()
    elif harm == "no header":
        header.unlink()
    elif harm == "bad header":
        header.write_text("[")
    else:
        header.write_text(header.read_text().replace('"format": 1', '"format": 0'))
    assert get().tokens.tolist() == expected and len(made) == 2


def test_a_full_disk_leaves_nothing(put, tmp_path, monkeypatch):
    path, cache = put("a.txt", prose(97)), tmp_path / "cache"

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(shard_files.os, "fsync", full)
        with pytest.raises(DataError, match=r"the disk is full, so no tokens were stored in .*: free some space there"):
            open_token_store([path], TOKENIZERS["bytes"], cache)
    assert not [p for p in cache.iterdir() if p.suffix != ".lock"]
    assert len(open_token_store([path], TOKENIZERS["bytes"], cache))


def start(code, *arguments):
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)], stdout=subprocess.PIPE, text=True
    )


BUILD = """
    import sys
    from pathlib import Path
    from weft.data.stores.token_store import open_token_store
    from weft.data.tokenizers.tokenizer import train_tokenizer
    steps = []
    store = open_token_store([sys.argv[1]], train_tokenizer("bytes", []), Path(sys.argv[2]), steps.append)
    print(bool(steps), store.folder, len(store))
"""
HANG = """
    import sys, time
    from pathlib import Path
    from weft.data.stores.token_store import open_token_store
    from weft.data.tokenizers.tokenizer import train_tokenizer
    def wait(done):
        print("begun", flush=True)
        time.sleep(600)
    open_token_store([sys.argv[1]], train_tokenizer("bytes", []), Path(sys.argv[2]), wait)
"""


def test_two_processes_at_once_and_one_killed_in_the_middle(put, tmp_path):
    path, cache = put("a.txt", prose(99_991)), tmp_path / "cache"
    killed = start(HANG, path, cache)
    assert killed.stdout.readline() == "begun\n"
    waiting = [start(BUILD, path, cache) for _ in range(2)]
    assert list(cache.glob(".*.new")) and not list(cache.glob("[!.]*"))
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    results = [process.communicate()[0].split() for process in waiting]
    assert sorted(result[0] for result in results) == ["False", "True"]
    assert results[0][1:] == results[1][1:] and int(results[0][2]) == len(path.read_bytes())
    assert not list(cache.glob(".*.new"))


MEMORY = """
    import sys
    from pathlib import Path
    import numpy as np
    from weft.data.stores.token_store import open_token_store, sample_texts
    from weft.data.tokenizers.tokenizer import train_tokenizer

    def peak():
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) // 1024

    path, kind, cache = Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
    tokenizer = train_tokenizer(kind, sample_texts([path], 1_000_000), 997)
    small = path.with_name("small.txt")
    with path.open("rb") as file:
        small.write_bytes(file.read(4_000_000))
    open_token_store([small], tokenizer, cache)
    before = peak()
    store = open_token_store([path], tokenizer, cache)
    for first in np.random.default_rng(3).integers(0, len(store) - 1025, 5_003):
        store.window(int(first), 1025)
    print(store.bytes, peak() - before)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak of memory is read from /proc")
@pytest.mark.parametrize(("kind", "line"), [("bytes", "\n"), ("bpe", " ")])
def test_memory_does_not_grow_with_the_text(tmp_path, kind, line):
    path = tmp_path / "large.txt"
    block = prose(199_999).replace("\n", line).encode()
    copies = 60_000_000 // len(block)
    with path.open("wb") as file:
        for _ in range(copies):
            file.write(block)
    out, _ = start(MEMORY, path, kind, tmp_path / "cache").communicate()
    size, growth = map(int, out.split())
    assert size >= copies * len(block) and size > 55_000_000
    assert growth < 20, "megabytes beyond what a text of 4 MB takes"


def test_stores_of_pieces_do_not_depend_on_their_size(put, tmp_path, monkeypatch):
    path = put("a.txt", prose(5_003))
    found = []
    for number, finest in enumerate((31, 101, pieces.CHUNK_SIZE)):
        monkeypatch.setattr(shard_files, "SMALLEST_CHUNK", finest)
        monkeypatch.setattr(shard_files, "BATCH_CHARACTERS", 997 * finest)
        store = open_token_store([path], TOKENIZERS["bpe"], tmp_path / f"cache{number}")
        assert isinstance(store, TokenStore)
        found.append(store.tokens.tolist())
    assert found[0] == found[1] == found[2]
