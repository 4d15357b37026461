"""Files whose fields are of the wrong kind, of any depth or length, or no text: one sentence, never a traceback."""

from __future__ import annotations

import base64
import copy
import csv
import io
import json
import os
import random
import subprocess
import sys

import numpy as np
import pytest

import weft
from foreign_folders import bert, clip, decoder, gpt2, t5, vision
from test_import_gguf import write as write_gguf
from weft.checkpoints.formats import gguf_checkpoint
from weft.checkpoints.formats.gguf_checkpoint import open_gguf
from weft.checkpoints.formats.gguf_file import GGUFFile, open_gguf_file
from weft.checkpoints.formats.huggingface_folder import open_huggingface
from weft.cli.main import app
from weft.cli.settings import read_settings
from weft.data.readers.classes import label_names, number_labels
from weft.data.readers.files import DataError, read_jsonl, read_table
from weft.data.readers.graphs import read_graphs
from weft.data.readers.sequences import read_sequences
from weft.data.readers.tables import TableOptions, open_table
from weft.data.tokenizers.tokenizer import load_tokenizer
from weft.foundation.errors import SpecError, WeftError
from weft.foundation.files.json_text import as_whole_number, parse_json

WRONG = ([], ["x"], [[1]], {}, {"a": 1}, "x", "", 1.5, -1, 0, True, 10**30, float("nan"))
MAKERS = {
    "llama": lambda folder: decoder(folder, "Llama"),
    "qwen2": lambda folder: decoder(folder, "Qwen2"),
    "gpt2": gpt2,
    "bert": bert,
    "vit": vision,
    "clip": clip,
    "t5": t5,
}
MOST_PER_FAMILY = 60


def one_sentence(call, *arguments):
    """Either it works or it says what is wrong in one sentence."""
    try:
        call(*arguments)
    except WeftError as error:
        told = str(error)
    else:
        return None
    assert "\n" not in told and len(told) < 500, told
    return told


def places(tree, above=()):
    for key, value in tree.items():
        yield (*above, key)
        if isinstance(value, dict):
            yield from places(value, (*above, key))


@pytest.mark.parametrize("family", MAKERS)
def test_fields_of_a_config(family, tmp_path):
    folder = tmp_path / "folder"
    MAKERS[family](folder)
    drawn = random.Random(family)
    told = 0
    for file in ("config.json", "tokenizer_config.json", "preprocessor_config.json"):
        if not (folder / file).exists():
            continue
        text = (folder / file).read_text()
        tree = json.loads(text)
        cases = [(place, value) for place in places(tree) for value in WRONG]
        chosen = drawn.sample(cases, min(MOST_PER_FAMILY, len(cases)))
        chosen += [(("architectures",), value) for value in WRONG] + [(("hidden_act",), value) for value in WRONG]
        for place, value in chosen if file == "config.json" else chosen[:MOST_PER_FAMILY]:
            changed = copy.deepcopy(tree)
            inner = changed
            for key in place[:-1]:
                inner = inner[key]
            inner[place[-1]] = value
            (folder / file).write_text(json.dumps(changed))
            told += one_sentence(open_huggingface, folder) is not None
        (folder / file).write_text(text)
    assert told > 10
    open_huggingface(folder)


def test_settings_of_a_gguf_file(tmp_path, monkeypatch):
    model = decoder(tmp_path / "folder", "Llama")
    path = write_gguf(tmp_path / "a.gguf", model, "llama")
    own = open_gguf_file(path)
    told = 0
    for key in own.settings:
        for value in (*WRONG, [float("inf")] * 3, ["a"] * 277, [1] * 277):
            file = GGUFFile(own.path, {**own.settings, key: value}, own.tensors)
            monkeypatch.setattr(gguf_checkpoint, "open_gguf_file", lambda _, file=file: file)
            told += one_sentence(open_gguf, path) is not None
    assert told > 100
    for key, value, words in (
        ("tokenizer.ggml.token_type", 3, "tokenizer.ggml.token_type is 3"),
        ("general.architecture", ["llama"], r"is of architecture ['llama']"),
    ):
        file = GGUFFile(own.path, {**own.settings, key: value}, own.tensors)
        monkeypatch.setattr(gguf_checkpoint, "open_gguf_file", lambda _, file=file: file)
        assert words in str(one_sentence(open_gguf, path))


# --- tokenizers ------------------------------------------------------------------------------------------------------

WORDS = {"type": "WordLevel", "vocab": {"a": 0, "b": 1}, "unk_token": "a"}
FORMS = {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(b"\x04\0\0\0abcdefgh").decode()}
PAIRS = {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 9}, "merges": ["a b"], "continuing_subword_prefix": "abc"}
LATER = {"single": [{"SpecialToken": {"id": "zz", "type_id": 0}}], "pair": [], "special_tokens": {}}
PANICS = {
    "charsmap": ({"normalizer": {**FORMS, "precompiled_charsmap": "YWJj"}}, lambda one: None),
    "merges": ({"model": PAIRS}, lambda one: None),
    "normalizer": ({"normalizer": FORMS}, lambda one: one.encode("a é")),
    "many": ({"normalizer": FORMS}, lambda one: one.encode_many(["a é", "b"])),
    "splits": ({"pre_tokenizer": {"type": "FixedLength", "length": 0}}, lambda one: one.encode("a b")),
    "frame": ({"post_processor": {"type": "TemplateProcessing", **LATER}}, lambda one: one.encode_framed("a")),
    "decoder": ({"decoder": {"type": "Strip", "content": "a", "start": 5, "stop": 5}}, lambda one: one.decode([0, 1])),
    "unknown": ({"model": {"type": "Unigram", "unk_id": None, "vocab": [["a", -1.0]]}}, lambda one: one.encode("é")),
}


@pytest.mark.parametrize("name", PANICS)
def test_tokenizers_that_make_their_library_panic(name, tmp_path):
    """Its panics are no Exceptions: without care they pass every handler."""
    changes, use = PANICS[name]
    tree = {"version": "1.0", "added_tokens": [], "normalizer": None, "pre_tokenizer": None, "post_processor": None}
    (tmp_path / "tokenizer.json").write_text(json.dumps({**tree, "decoder": None, "model": WORDS, **changes}))
    with pytest.raises(WeftError, match="tokenizer") as caught:
        use(load_tokenizer(tmp_path))
    assert "\n" not in str(caught.value)


def test_interrupts_pass_through():
    from weft.data.tokenizers.tokenizer import explain_failure

    stop = KeyboardInterrupt()
    assert explain_failure(stop, "x") is stop


# --- JSON, numbers, tables -------------------------------------------------------------------------------------------

DEEP, LONG = "[" * 100_000, "9" * 5_000


@pytest.mark.parametrize(("text", "words"), [(DEEP, "nested too deeply"), (LONG, "too many digits"), ("{", "line 1")])
def test_json_of_any_shape(text, words, tmp_path):
    with pytest.raises(ValueError, match=words):
        parse_json(text)
    (tmp_path / "a.jsonl").write_text(f'{{"a": 1}}\n{{"a": {text}')
    with pytest.raises(DataError, match=r"a\.jsonl, line 2: not JSON"):
        list(read_jsonl(tmp_path / "a.jsonl"))
    (tmp_path / "a.json").write_text(text if text != LONG else f"[{LONG}]")
    with pytest.raises(DataError, match="not JSON"):
        read_graphs([tmp_path / "a.json"])
    for read in (weft.read_spec, weft.models.decoder.DecoderSpec.from_json):
        with pytest.raises(SpecError):
            read(f'{{"width": {text}')
    for toml in (f"width = {text}", f"a = {'[' * 5000}"):
        with pytest.raises(SpecError):
            weft.read_spec(toml)
    for name in ("spec.json", "plan.json"):
        run = tmp_path / "run"
        run.mkdir(exist_ok=True)
        (run / "spec.json").write_text("{}")
        (run / name).write_text(f'{{"task": {text}')
        with pytest.raises(WeftError):
            weft.load(run)
    assert read_settings([f"width={text}"]) == {"width": text}


def test_numbers_of_many_digits(tmp_path):
    assert as_whole_number("12") == 12 and as_whole_number("²") is None and as_whole_number("1" * 19) is None
    names = [LONG, "10", "2", "-3", f"-{LONG}"]
    assert number_labels(names, learn=False)[1][:3] == ("-3", "2", "10")
    (tmp_path / "a.csv").write_text("text,label\na,b\nc,d\n")
    with pytest.raises(DataError, match="has no column '999"):
        open_table(tmp_path / "a.csv").places([LONG])
    (tmp_path / "a.ts").write_text(f"@dimensions {LONG}\n@classLabel true a b\n@data\n1,2:a\n")
    with pytest.raises(DataError, match="@dimensions 999"):
        read_sequences([tmp_path / "a.ts"])
    spec = weft.preset("nano-gpt")
    for path in (f"mixer.{LONG}", "mixer.²", f"mixer.{LONG}.heads"):
        with pytest.raises(SpecError):
            spec.replace(**{path: 2})
    assert TableOptions()


def test_sizes_beyond_64_bits_are_refused_before_anything_is_planned(tmp_path):
    with pytest.raises(SpecError, match="width is a whole number of 67 bits: choose one of 63 or fewer"):
        weft.preset("nano-gpt").replace(width=99999999999999999999)
    with pytest.raises(SpecError, match="heads is a whole number"):
        weft.preset("nano-gpt").replace(**{"mixer.heads": -(10**4000)})
    with pytest.raises(WeftError, match="width is a whole number"):
        weft.train("text", "sample:markov", tmp_path / "run", steps=2, set={"width": 10**20})
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "error", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), ValueError("else")]
)
def test_too_little_memory_is_a_sentence(error, monkeypatch, capsys):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr("weft.data.tokenizers.tokenizer.train_tokenizer", fail)
    with pytest.raises(ValueError if isinstance(error, ValueError) else SystemExit):
        app(["tokens", "bytes", "abc"], prog_name="weft")
    told = capsys.readouterr().err
    assert isinstance(error, ValueError) or told == (
        "weft: there is not enough memory: choose a smaller model, batch or input\n"
    )


def test_cells_have_a_limit_on_the_first_line_too(tmp_path):
    limit = csv.field_size_limit()
    (tmp_path / "a.csv").write_text("x" * ((1 << 24) + 1) + ",b\n")
    with pytest.raises(DataError, match=r"a\.csv, line 1: field larger than field limit"):
        list(read_table(tmp_path / "a.csv"))
    assert csv.field_size_limit() >= limit


def test_labels_that_are_no_text(tmp_path):
    with pytest.raises(DataError, match=r"the label b'\\xff.* is not UTF-8"):
        label_names(tmp_path / "a.npz", np.array([b"a", b"\xff\xfe"]))
    with pytest.raises(DataError, match="fractions or no numbers"):
        label_names(tmp_path / "a.npz", np.array([1.0, 1e300]))


# --- no text ---------------------------------------------------------------------------------------------------------


def test_halves_of_surrogate_pairs(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "fine \\ud83d\\ude00", "label": "a"}\n{"text": "half \\ud83d", "label": "b"}\n')
    with pytest.raises(DataError, match=r"a\.jsonl, line 2: a text holds half of a surrogate pair"):
        list(read_jsonl(path))
    path.write_text('{"text": "fine \\ud83d\\ude00", "la\\ude00bel": "a"}\n')
    with pytest.raises(DataError, match="line 1: a text holds half"):
        list(read_jsonl(path))
    path.write_text('{"text": "fine \\ud83d\\ude00", "more": "\\\\ud83d"}\n')
    assert [row["text"] for _, row in read_jsonl(path)] == ["fine 😀"]


@pytest.mark.parametrize("locale", ["C", "C.UTF-8"])
def test_bytes_that_are_no_text_on_the_command_line_and_on_stdin(locale):
    def call(*words, given=b""):
        done = subprocess.run(
            [sys.executable, "-m", "weft", *words],
            input=given,
            capture_output=True,
            check=False,
            env={**os.environ, "LC_ALL": locale},
        )
        assert done.returncode == 2 and done.stderr.count(b"\n") == 1, done.stderr[-500:]
        return done.stderr

    assert b"argument 3, 'a\\udcff', is not UTF-8" in call("predict", "sample:dates-run", b"a\xff")
    assert b"stdin is not UTF-8 text" in call("predict", "sample:dates-run", given=b"May\xff\n")
    assert b"stdin is not UTF-8 text" in call("tokens", "bytes", given=b"May\xff\n")


def test_csv_of_the_standard_library_is_not_changed_by_an_error():
    with pytest.raises(csv.Error):
        next(csv.reader(io.StringIO("x" * ((1 << 24) + 1))))
