"""Vocabularies in the families' own files: the ids that these libraries give, framed as they frame them."""

from __future__ import annotations

import json

import pytest

import weft
from foreign_folders import bart, decoder
from test_tokenizers import sentencepiece
from weft.checkpoints.convert_checkpoint import convert_checkpoint
from weft.checkpoints.families.family import Config
from weft.checkpoints.formats.vocabulary import read_vocabulary
from weft.data.tokenizers.tokenizer import load_tokenizer, train_tokenizer

UNIGRAM, BPE = 1, 2
LLAMA = [("<unk>", 0, 2), ("<s>", 0, 3), ("</s>", 0, 3), ("▁a", -1, 1), ("▁", -2, 1), ("a", -3, 1), ("b", -4, 1)]


def read(folder, kind, **settings):
    if settings:
        (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return read_vocabulary(folder, Config({"model_type": kind}))


def test_llama_begins_with_its_start_token(tmp_path):
    (tmp_path / "tokenizer.model").write_bytes(sentencepiece(LLAMA, BPE))
    found = read(tmp_path, "llama")
    assert (found.before, found.after) == ((1,), ()) and found.tokenizer.encode("ab a") == [3, 6, 3]
    names = {"bos_token": "<s>", "eos_token": {"content": "</s>"}}
    found = read(tmp_path, "llama", **names, add_bos_token=False, add_eos_token=True)
    assert (found.before, found.after) == ((), (2,)) and found.names == {"bos_token": "<s>", "eos_token": "</s>"}
    added = {"7": {"content": "<|im_start|>", "special": True}, "8": {"content": "tool", "special": False}}
    found = read(tmp_path, "llama", **names, added_tokens_decoder=added)
    assert found.tokenizer.encode("<|im_start|>a")[0] == 7 and found.tokenizer.id_of("tool") == 8
    with pytest.raises(weft.WeftError, match="as token 9, but the next is 7"):
        read(tmp_path, "llama", added_tokens_decoder={"9": {"content": "<x>"}})


def test_t5_ends_with_its_stop_token_and_has_sentinels(tmp_path):
    pieces = [
        ("<pad>", 0, 3),
        ("</s>", 0, 3),
        ("<unk>", 0, 2),
        ("▁the", -1, 1),
        ("▁", -2, 1),
        ("s", -3, 1),
        ("e", -3, 1),
    ]
    (tmp_path / "spiece.model").write_bytes(sentencepiece(pieces, UNIGRAM))
    found = read(tmp_path, "t5")
    assert (found.before, found.after) == ((), (1,))
    assert found.tokenizer.encode(" the  <extra_id_0> see ") == [3, 106, 4, 5, 6, 6]
    assert found.tokenizer.id_of("<extra_id_99>") == 7 and found.tokenizer.vocabulary == 107
    assert found.tokenizer.decode([3, 4, 5, 6]) == "the se"


def test_roberta_and_bart_frame_each_text(tmp_path):
    names = {"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3, "a": 4, "b": 5, "ab": 6, "Ġ": 7, "Ġab": 8, "<mask>": 9}
    (tmp_path / "vocab.json").write_text(json.dumps(names))
    (tmp_path / "merges.txt").write_text("#version: 0.2\na b\nĠ ab\n")
    found = read(tmp_path, "roberta")
    assert (found.before, found.after) == ((0,), (2,)) and found.tokenizer.encode("ab ab<mask>") == [6, 8, 9]
    assert found.tokenizer.pad == 1


def test_bert_reads_small_letters_only_if_it_says_so(tmp_path):
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nPlay\nplay\n##ing\n")
    assert read(tmp_path, "bert", do_lower_case=False).tokenizer.encode("Playing") == [5, 7]
    found = read(tmp_path, "bert", do_lower_case=True)
    assert found.tokenizer.encode("Playing") == [6, 7] and (found.before, found.after) == ((2,), (3,))


def test_qwen_takes_digits_apart(tmp_path):
    tokenizer = train_tokenizer("bpe", ["12345 12345 12345"] * 9, vocabulary=270)
    model = json.loads(tokenizer.engine.to_str())["model"]
    (tmp_path / "vocab.json").write_text(json.dumps(model["vocab"]))
    (tmp_path / "merges.txt").write_text("\n".join(" ".join(pair) for pair in model["merges"]))
    assert len(load_tokenizer(tmp_path).encode("12345")) < 5
    assert len(read(tmp_path, "qwen2").tokenizer.encode("12345")) == 5


def marian_files(folder):
    """Two languages with pieces of their own, one vocabulary for both."""
    source = [
        ("<unk>", 0, 2),
        ("<s>", 0, 3),
        ("</s>", 0, 3),
        ("▁the", -1, 1),
        ("▁", -2, 1),
        ("c", -3, 1),
        ("at", -2, 1),
    ]
    target = [
        ("<unk>", 0, 2),
        ("<s>", 0, 3),
        ("</s>", 0, 3),
        ("▁die", -1, 1),
        ("▁", -2, 1),
        ("K", -3, 1),
        ("atze", -2, 1),
    ]
    (folder / "source.spm").write_bytes(sentencepiece(source, UNIGRAM))
    (folder / "target.spm").write_bytes(sentencepiece(target, UNIGRAM))
    names = ["<pad>", "<unk>", "</s>", "▁the", "▁", "c", "at", "▁die", "K", "atze", ">>de<<"]
    (folder / "vocab.json").write_text(json.dumps({name: number for number, name in enumerate(names)}))


def test_marian_reads_one_language_and_writes_another(tmp_path):
    folder = tmp_path / "folder"
    bart(folder, "Marian", vocab_size=11)
    (folder / "tokenizer.json").unlink()
    marian_files(folder)
    found = read(folder, "marian")
    tokenizer = found.tokenizer
    assert tokenizer.encode("the cat") == [3, 4, 5, 6] and found.after == (2,) and found.before == ()
    assert tokenizer.target.encode("die Katze") == [7, 4, 8, 9] and tokenizer.decode([7, 4, 8, 9]) == "die Katze"
    assert tokenizer.encode(">>de<< the") == [10, 3]
    # Of the other language's pieces only letters are known: what is unknown is looked up by its own form.
    assert tokenizer.encode("the K")[-1] == 8 and 9 not in tokenizer.encode("atze")
    run = weft.load(convert_checkpoint(folder, tmp_path / "run").run)
    assert (tmp_path / "run" / "target_tokenizer.json").is_file()
    assert run.tokenizer.target.encode("die Katze") == [7, 4, 8, 9]
    part = run.task._split([("the cat", "die Katze")])
    assert part.source(0) == [3, 4, 5, 6, 2] and part.targets[0] == [7, 4, 8, 9]
    answer = run.answer(["the cat"], max_tokens=9, beam=3)[0]
    assert 0 not in run.tokenizer.encode(answer.output) and "<pad>" not in answer.more["tokens"]
    (folder / "vocab.json").write_text('{"a": 3}')
    with pytest.raises(weft.WeftError, match=r"vocab\.json does not number its pieces"):
        read(folder, "marian")


def test_huge_vocabularies_and_templates_are_refused(tmp_path):
    decoder(tmp_path / "folder", "Llama")
    with (tmp_path / "folder" / "chat_template.jinja").open("wb") as file:
        file.truncate(2 << 20)
    with pytest.raises(weft.WeftError, match="which no chat template has"):
        read(tmp_path / "folder", "llama")
    (tmp_path / "folder" / "chat_template.jinja").unlink()
    with (tmp_path / "folder" / "tokenizer.json").open("wb") as file:
        file.truncate(65 << 20)
    with pytest.raises(weft.WeftError, match="which no vocabulary has"):
        read(tmp_path / "folder", "llama")
