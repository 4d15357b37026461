"""Runs as GGUF files: read back to the same bits, by transformers to the same logits, by llama.cpp to the same text."""

from __future__ import annotations

import json
from itertools import islice

import pytest
import torch
from tokenizers import Regex, normalizers, pre_tokenizers
from typer.testing import CliRunner

import weft
from runs_on_disk import gpt2, llama, write_run
from weft.checkpoints.export import export_checkpoint as exporting
from weft.checkpoints.formats.gguf_file import open_gguf_file
from weft.cli.main import app
from weft.data.readers.texts import CHAT_TOKENS
from weft.data.tokenizers.sentencepiece import BPE, BYTE, CONTROL, NORMAL, UNKNOWN, SentencePieceModel
from weft.data.tokenizers.tokenizer import Tokenizer, train_tokenizer
from weft.data.tokenizers.vocabulary_files import from_sentencepiece
from weft.foundation.errors import WeftError

TEXTS = ["the cat sat on the mat; it's 1984 and 12345.", "a dog ran after the cat, twice  over\nand over  again"] * 3
QWEN2 = {"mixer.bias": True, "mixer.output_bias": False, "mixer.head_width": 4}
QWEN3 = {"mixer.query_key_norm": {"kind": "rms", "epsilon": 1e-6}, "norm.epsilon": 1e-6}
EXPERTS = {"feedforward": {"kind": "experts", "experts": 5, "active": 3, "hidden": 37}}
STRETCHED = {"kind": "llama3", "factor": 8.0, "low": 1.0, "high": 4.0, "original": 8192}
SHAPES = {
    "gpt2": gpt2,
    "llama": llama,
    "llama 3": lambda C: llama(C, **{"positions.scaling": STRETCHED, "positions.base": 500_000.0}),
    "llama, linear": lambda C: llama(C, **{"positions.scaling": {"kind": "linear", "factor": 3.0}}),
    "qwen2": lambda C: llama(C, **QWEN2),
    "qwen3": lambda C: llama(C, **QWEN3),
    "mixtral": lambda C: llama(C, **EXPERTS, head={"kind": "linear"}),
}


def pieces() -> Tokenizer:
    """A SentencePiece model with bytes to fall back on, as Llama 2 has one."""
    controls = [("<unk>", 0.0, UNKNOWN), ("<s>", 0.0, CONTROL), ("</s>", 0.0, CONTROL)]
    signs = [(f"<0x{n:02X}>", 0.0, BYTE) for n in range(256)]
    merged = ["th", "▁th", "▁the", "at", "▁c", "▁cat", "▁a", "on", "er", "ov", "over"]
    letters = sorted({c for text in TEXTS for c in text.replace(" ", "▁") if c not in "\n"} | {"▁"})
    rows = [(piece, -1.0 - n, NORMAL) for n, piece in enumerate([*merged, *letters])]
    return Tokenizer(from_sentencepiece(SentencePieceModel([*controls, *signs, *rows], BPE)))


def split_as(words: str, digits: int) -> Tokenizer:
    tokenizer = train_tokenizer("bpe", TEXTS, 300)
    bytes_only = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    split = pre_tokenizers.Split(Regex(words % digits), "isolated")
    tokenizer.engine.pre_tokenizer = pre_tokenizers.Sequence([split, bytes_only])
    if digits == 1:
        tokenizer.engine.normalizer = normalizers.NFC()
    return tokenizer


def by_digits() -> Tokenizer:
    tokenizer = train_tokenizer("bpe", TEXTS, 300)
    plain = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.engine.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), plain])
    return tokenizer


LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,%d}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
    r"\s*[\r\n]+|\s+(?!\S)|\s+"
)
TOKENIZERS = {
    "characters": (lambda: train_tokenizer("characters", TEXTS), "t5", None),
    "bytes": (lambda: train_tokenizer("bytes", []), "gpt2", "gpt-2"),
    "bpe": (lambda: train_tokenizer("bpe", TEXTS, 300), "gpt2", "gpt-2"),
    "digits apart": (by_digits, "gpt2", "smollm"),
    "as Llama 3": (lambda: split_as(LLAMA3, 3), "gpt2", "llama-bpe"),
    "as Qwen": (lambda: split_as(LLAMA3, 1), "gpt2", "qwen2"),
    "pieces": (pieces, "llama", None),
}


def export(tmp_path, spec, tokenizer, kind=None, facts=None):
    run = write_run(tmp_path / "run", spec, tokenizer=tokenizer, facts=facts)
    return run, weft.export(run, "gguf", tmp_path / "out", type=kind)


@pytest.mark.parametrize("name", SHAPES)
def test_read_back_it_is_the_same_model(name, tmp_path):
    tokenizer = train_tokenizer("bytes", [])
    run, made = export(tmp_path, SHAPES[name](tokenizer.vocabulary + 5), tokenizer)
    # llama.cpp, where it is installed, looks GELU and SiLU up in tables of half precision.
    bound = 2e-3 if made.peer == "llama.cpp" else 1e-6
    assert made.parity is not None and made.parity < bound and made.path == tmp_path / "out" / "model.gguf"
    assert made.architecture == ("gpt2" if name == "gpt2" else name if name.startswith("qwen") else "llama")
    back = weft.import_checkpoint(made.path, tmp_path / "back", certificate=False)
    kept, again = weft.load(run).module.state_dict(), back.module.state_dict()
    assert set(kept) == set(again) and all(torch.equal(kept[key], again[key]) for key in kept)
    assert back.tokenizer is not None and back.tokenizer.encode(TEXTS[0]) == tokenizer.encode(TEXTS[0])
    assert back.spec.facts["stops"] == [tokenizer.stop] and back.spec.facts["before"] == []


@pytest.mark.parametrize("name", ["gpt2", "llama", "qwen2"])
def test_transformers_reads_the_same_logits(name, tmp_path):
    transformers = pytest.importorskip("transformers")
    tokenizer = train_tokenizer("bytes", [])
    # Its reader of GPT-2 leaves the hidden width out and takes 4 D.
    spec = SHAPES[name](tokenizer.vocabulary).replace(**({"feedforward.hidden": 96} if name == "gpt2" else {}))
    run, made = export(tmp_path, spec, tokenizer)
    model = transformers.AutoModelForCausalLM.from_pretrained(made.path.parent, gguf_file=made.path.name).eval()
    tokens = torch.randint(4, 200, (2, 17))
    with torch.no_grad():
        assert torch.allclose(weft.load(run).module(tokens).logits, model(tokens).logits, atol=2e-5)


@pytest.mark.parametrize("name", TOKENIZERS)
def test_the_tokenizer_is_told_in_one_of_the_ways_that_llama_cpp_knows(name, tmp_path):
    make, model, way = TOKENIZERS[name]
    tokenizer = make()
    _, made = export(tmp_path, llama(tokenizer.vocabulary), tokenizer)
    settings = open_gguf_file(made.path).settings
    assert settings["tokenizer.ggml.model"] == model
    if way is not None:
        assert settings["tokenizer.ggml.pre"] == way
    back = weft.import_checkpoint(made.path, tmp_path / "back", certificate=False).tokenizer
    assert back is not None
    for text in TEXTS:
        assert back.encode(text) == tokenizer.encode(text)
        assert back.decode(back.encode(text)) == tokenizer.decode(tokenizer.encode(text))
    assert [back.id_of(token) for token in ("<stop>", "</s>")] == [tokenizer.id_of(t) for t in ("<stop>", "</s>")]


def test_words_are_refused_with_a_remedy(tmp_path):
    with pytest.raises(WeftError, match=r"no pre-tokenizer .* WordLevel .* data.tokenizer=bpe"):
        export(tmp_path, llama(200), train_tokenizer("words", TEXTS))
    assert not (tmp_path / "out").exists()


def test_chats_and_ends_are_told(tmp_path):
    tokenizer = train_tokenizer("bpe", TEXTS, 300, special_tokens=CHAT_TOKENS)
    facts = {"before": [tokenizer.start], "stops": [tokenizer.stop, tokenizer.id_of("<Assistant:>")]}
    _, made = export(tmp_path, llama(tokenizer.vocabulary), tokenizer, facts=facts)
    back = weft.import_checkpoint(made.path, tmp_path / "back", certificate=False)
    assert {name: back.spec.facts[name] for name in facts} == facts
    talk = [{"role": "user", "content": "the cat"}]
    assert back.task.prompt_format.chat_ids(talk, back.tokenizer) == weft.load(
        tmp_path / "run"
    ).task.prompt_format.chat_ids(talk, tokenizer)


@pytest.mark.parametrize(
    ("kind", "stored", "within"), [("f16", "F16", 2e-2), ("bf16", "BF16", 0.2), ("q8_0", "Q8_0", 0.2)]
)
def test_types_of_weights(kind, stored, within, tmp_path):
    tokenizer = train_tokenizer("bytes", [])
    sizes = {"width": 64, "feedforward.hidden": 96, "mixer.head_width": 16}
    _, made = export(tmp_path, llama(tokenizer.vocabulary, **sizes), tokenizer, kind)
    tensors = open_gguf_file(made.path).tensors
    assert {info.kind for info in tensors.values() if len(info.shape) == 2} == {stored}
    assert {info.kind for info in tensors.values() if len(info.shape) == 1} == {"F32"}
    assert made.parity is not None and 0 < made.parity < within


def test_rows_that_are_no_whole_blocks_stay_in_half_precision(tmp_path):
    tokenizer = train_tokenizer("bytes", [])
    _, made = export(tmp_path, gpt2(tokenizer.vocabulary), tokenizer, "q8_0")
    tensors = open_gguf_file(made.path).tensors
    assert tensors["blk.0.attn_qkv.weight"].kind == "F16" and tensors["position_embd.weight"].kind == "F32"


def test_what_llama_cpp_would_compute_otherwise_is_refused_by_name(tmp_path):
    tokenizer = train_tokenizer("bytes", [])

    def refused(words, spec, kind=None):
        run = write_run(tmp_path / f"run{len(list(tmp_path.iterdir()))}", spec, tokenizer=tokenizer)
        with pytest.raises(WeftError, match=words):
            weft.export(run, "gguf", tmp_path / "out", type=kind)

    refused("mixer.window", llama(260, **{"mixer.window": 7}))
    refused("feedforward.activation is 'gelu'", gpt2(260, **{"feedforward.activation": "gelu"}))
    refused("feedforward.activation is 'gelu_new'", llama(260, **{"feedforward.activation": "gelu-tanh"}))
    refused("feedforward.bias", llama(260, **{"feedforward.bias": True}))
    refused("mixer.head_width", llama(260, **(QWEN2 | {"mixer.head_width": 10})))
    refused("positions.scaling", llama(260, **{"positions.scaling": STRETCHED | {"high": 3.0}}))
    refused("no type 'q2_k'", llama(260), "q2_k")
    refused("embedding has 100 rows", llama(100))
    refused("maps to no architecture", weft.preset("nano-gpt").replace(vocabulary=260))
    assert not (tmp_path / "out").exists()


def test_the_command(tmp_path):
    tokenizer = train_tokenizer("bytes", [])
    run = write_run(tmp_path / "run", gpt2(tokenizer.vocabulary), tokenizer=tokenizer)
    order = ["export", str(run), "--to", "gguf", "--type", "f16", "--out", str(tmp_path / "out")]
    result = CliRunner().invoke(app, [*order, "--json"])
    found = json.loads(result.stdout)
    assert found["path"].endswith("model.gguf") and found["architecture"] == "gpt2" and found["parity"] < 0.05


@pytest.mark.parametrize("name", ["gpt2", "llama", "llama 3", "qwen2", "qwen3", "mixtral"])
@pytest.mark.parametrize("kind", ["bpe", "characters"])
def test_llama_cpp_continues_with_the_same_text(name, kind, tmp_path):
    llama_cpp = pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")
    tokenizer = train_tokenizer(kind, TEXTS, 300)
    run, made = export(tmp_path, SHAPES[name](tokenizer.vocabulary), tokenizer)
    model = llama_cpp.Llama(str(made.path), n_ctx=61, n_threads=1, verbose=False)
    prompt = "the cat ran"
    ids = model.tokenize(prompt.encode(), add_bos=False, special=False)
    assert ids == tokenizer.encode(prompt)
    theirs = list(islice(model.generate(ids, temp=0.0), 12))
    ours = weft.load(run).answer([prompt], max_tokens=12, temperature=0)[0].more["tokens"]
    assert tokenizer.pieces(theirs)[: len(ours)] == ours and len(ours) > 3
    model.close()


def test_a_letter_that_training_never_saw_is_unknown_to_llama_cpp_too(tmp_path):
    llama_cpp = pytest.importorskip("llama_cpp")
    tokenizer = train_tokenizer("characters", TEXTS)
    _, made = export(tmp_path, llama(tokenizer.vocabulary), tokenizer)
    theirs = llama_cpp.Llama(str(made.path), n_ctx=64, verbose=False)
    for text in ("a Ω b", "Ω", " the  cat\n"):
        assert theirs.tokenize(text.encode(), add_bos=False) == tokenizer.encode(text)


def test_three_ends_are_told_by_their_names(tmp_path):
    names = ("<|end_of_text|>", "<|eom_id|>", "<|eot_id|>")
    tokenizer = train_tokenizer("bytes", [], special_tokens=names)
    stops = [tokenizer.id_of(name) for name in names]
    write_run(tmp_path / "run", llama(tokenizer.vocabulary), tokenizer=tokenizer, facts={"stops": stops})
    made = weft.export(tmp_path / "run", "gguf", tmp_path / "out")
    settings = open_gguf_file(made.path).settings
    assert [settings[f"tokenizer.ggml.{role}_token_id"] for role in ("eos", "eot", "eom")] == [
        stops[0],
        stops[2],
        stops[1],
    ]
    back = weft.import_checkpoint(made.path, tmp_path / "back", certificate=False)
    assert sorted(back.spec.facts["stops"]) == sorted(stops)


def test_biases_that_llama_cpp_lacks_are_refused(tmp_path):
    tokenizer = train_tokenizer("bytes", [])
    with pytest.raises(WeftError, match=r"mixer\.bias"):
        export(tmp_path, llama(tokenizer.vocabulary, **QWEN3, **{"mixer.bias": True}), tokenizer)


def test_one_expert_is_read_alone(tmp_path):
    tokenizer = train_tokenizer("bytes", [])
    _, made = export(tmp_path, SHAPES["mixtral"](tokenizer.vocabulary), tokenizer)
    file = open_gguf_file(made.path)
    whole = file.read("blk.1.ffn_up_exps.weight")
    for number in range(5):
        one = file.read("blk.1.ffn_up_exps.weight", number)
        assert torch.equal(one, whole[number]) and one.untyped_storage().nbytes() == one.numel() * 4


def test_answers_that_differ_are_refused(tmp_path, monkeypatch):
    tokenizer = train_tokenizer("bytes", [])
    other = torch.randn(24, tokenizer.vocabulary)
    monkeypatch.setattr(exporting, "ask_llama_cpp", lambda path, tokens: other)
    with pytest.raises(WeftError, match=r"llama\.cpp differ .* nothing was written"):
        export(tmp_path, llama(tokenizer.vocabulary), tokenizer)
    assert not (tmp_path / "out").exists()
    write_run(tmp_path / "again", llama(tokenizer.vocabulary), tokenizer=tokenizer)
    made = weft.export(tmp_path / "again", "gguf", tmp_path / "out", certificate=False)
    assert made.parity is None and made.path.exists()
