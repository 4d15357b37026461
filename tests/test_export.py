"""Runs as Hugging Face folders: the same logits and tokens there, the same bits when imported again."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from PIL import Image
from safetensors.torch import load_file
from typer.testing import CliRunner

import foreign_folders
import weft
from runs_on_disk import gpt2, llama, write_run
from weft.checkpoints.export import huggingface as export_huggingface
from weft.checkpoints.families import find_family
from weft.cli.main import app
from weft.data.readers.texts import CHAT_TOKENS
from weft.data.tokenizers.tokenizer import Tokenizer, train_tokenizer
from weft.foundation.errors import WeftError
from weft.foundation.files.atomic_files import DiskError
from weft.parts.lora import adapt, adapters

TEXTS = ["the cat sat on the mat; it's 1984.", "a dog ran after the cat, twice  over\nand over"]
FAMILIES = (
    "gpt2", "llama, tied, with biases", "llama 3", "mistral", "qwen2", "qwen3, mixed windows", "mixtral", "bert",
    "bert, classes", "bert, tags", "roberta, classes", "roberta, tags", "vit", "vit, bare", "deit, teacher", "t5",
    "t5, gated", "bart", "marian", "bert, masked", "roberta, masked", "bert, score", "opt, post-norm, no biases",
    "llama, yarn with its own amplitude", "neox", "neox, one branch after the other, tied",
    "phi3, window, partly turning", "gemma2", "gemma2, untied, with biases", "gemma3", "gemma3, capped and scaled",
)  # fmt: skip


def letters(*specials: str) -> Tokenizer:
    return train_tokenizer("characters", TEXTS, special_tokens=specials)


def same_spec(one: Path, other: Path) -> bool:
    trees = [json.loads((folder / "spec.json").read_text()) for folder in (one, other)]
    return all(tree.pop("sources") for tree in trees) and trees[0] == trees[1]


@pytest.mark.parametrize("name", FAMILIES)
def test_a_folder_comes_back_to_the_same_bits(name, tmp_path):
    foreign_folders.FOLDERS[name](tmp_path / "folder")
    weft.import_checkpoint(tmp_path / "folder", tmp_path / "first", certificate=False)
    made = weft.export(tmp_path / "first", "huggingface", tmp_path / "out", certificate=name in ("gpt2", "t5", "vit"))
    original = json.loads((tmp_path / "folder" / "config.json").read_text())
    assert made.architecture == original["architectures"][0]
    if made.parity is not None:
        assert made.parity < 1e-5 and made.peer == f"transformers {transformers.__version__}"
    weft.import_checkpoint(tmp_path / "out", tmp_path / "second", certificate=False)
    assert same_spec(tmp_path / "first", tmp_path / "second")
    for file in ("model.safetensors", "tokenizer.json"):
        first, second = (tmp_path / run / file for run in ("first", "second"))
        assert first.exists() == second.exists()
        assert not first.exists() or first.read_bytes() == second.read_bytes()
    kept, again = (load_file(tmp_path / place / "model.safetensors") for place in ("folder", "out"))
    unused = 2 if name.startswith(("roberta", "bart", "opt")) else 0  # rows of positions that nothing looks up
    for key in again:
        first = unused if "position" in key else 0
        # A head that is the embedding is written once more where a config cannot call it tied.
        original = kept["shared.weight"] if key == "lm_head.weight" and key not in kept else kept[key]
        assert torch.equal(again[key][first:], original[first:]), key


def test_half_precision_stays(tmp_path):
    foreign_folders.decoder(tmp_path / "folder", "Llama")
    model = transformers.LlamaForCausalLM.from_pretrained(tmp_path / "folder", dtype=torch.bfloat16)
    model.save_pretrained(tmp_path / "folder")
    run = weft.import_checkpoint(tmp_path / "folder", tmp_path / "run", certificate=False)
    weft.export(run, "huggingface", tmp_path / "out", certificate=False)
    kept, again = (load_file(tmp_path / place / "model.safetensors") for place in ("folder", "out"))
    assert all(again[key].dtype == torch.bfloat16 and torch.equal(again[key], kept[key]) for key in kept)
    assert json.loads((tmp_path / "out" / "config.json").read_text())["dtype"] == "bfloat16"


@pytest.mark.parametrize("shape", [llama, gpt2])
def test_a_trained_text_run_loads_with_its_tokenizer(shape, tmp_path):
    tokenizer = letters()
    run = write_run(tmp_path / "run", shape(tokenizer.vocabulary), tokenizer=tokenizer)
    weft.export(run, "huggingface", tmp_path / "out", certificate=False)
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out").eval()
    reader = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    ids = reader(TEXTS[0])["input_ids"]
    assert ids == tokenizer.encode(TEXTS[0]) and reader.decode(ids) == TEXTS[0]
    assert model.config.eos_token_id == reader.eos_token_id == tokenizer.stop
    assert reader.pad_token_id == tokenizer.pad and reader.bos_token_id == tokenizer.start
    tokens = torch.tensor([ids])
    with torch.no_grad():
        ours, theirs = weft.load(run).module(tokens).logits, model(tokens).logits
    assert torch.allclose(ours, theirs, atol=1e-5)
    written = model.generate(tokens, max_new_tokens=9, do_sample=False)[0, len(ids) :].tolist()
    assert reader.decode(written) == weft.load(run).predict(TEXTS[0], max_tokens=9, temperature=0)


def test_a_chat_run_brings_its_template(tmp_path):
    tokenizer = letters(*CHAT_TOKENS)
    run = write_run(tmp_path / "run", llama(tokenizer.vocabulary), tokenizer=tokenizer)
    weft.export(run, "huggingface", tmp_path / "out", certificate=False)
    reader = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    talk = [
        {"role": "user", "content": "a cat"},
        {"role": "assistant", "content": "sat"},
        {"role": "user", "content": "on"},
    ]
    ids = reader.apply_chat_template(talk, add_generation_prompt=True, tokenize=True, return_dict=False)
    assert ids == weft.load(run).task.prompt_format.chat_ids(talk, tokenizer)


def test_a_translator_of_t5_shape_reads_and_writes_the_same(tmp_path):
    tokenizer = letters()
    sizes = {"width": 24, "layers": 1, "mixer.heads": 3, "mixer.head_width": 8, "feedforward.hidden": 37, "length": 61}
    spec = weft.preset("t5-small").replace(**sizes, vocabulary=tokenizer.vocabulary, **{"head.scale": 24**-0.5})
    run = write_run(tmp_path / "run", spec, "translation", tokenizer, {"longest": [40, 40], "pairs": 7})
    weft.export(run, "huggingface", tmp_path / "out", certificate=False)
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "out").eval()
    reader = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    source = reader(TEXTS[0], return_tensors="pt")
    assert source["input_ids"][0].tolist() == [*tokenizer.encode(TEXTS[0]), tokenizer.stop]
    written = model.generate(source["input_ids"], max_new_tokens=8, do_sample=False, num_beams=1)[0]
    assert written[0] == tokenizer.start
    expected = weft.load(run).answer([TEXTS[0]], temperature=0, max_tokens=8)[0]
    assert tokenizer.pieces(written[1:].tolist()) == expected.more["tokens"]


def test_classes_and_pictures_keep_their_names_and_scales(tmp_path):
    spec = weft.preset("nano-vit").replace(
        width=24, layers=1, image=14, patch=7, channels=3, classes=3, **{"mixer.heads": 3}
    )
    facts = {"classes": ["cat", "dog", "owl"], "side": 14, "mean": [0.4, 0.5, 0.6], "deviation": [0.2, 0.3, 0.25]}
    run = write_run(tmp_path / "run", spec, "images", facts={**facts, "augmentation": []})
    weft.export(run, "huggingface", tmp_path / "out", certificate=False)
    model = transformers.AutoModelForImageClassification.from_pretrained(tmp_path / "out").eval()
    assert model.config.id2label == {0: "cat", 1: "dog", 2: "owl"}
    pixels = np.random.default_rng(0).integers(0, 256, (14, 14, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "picture.png")
    settings = json.loads((tmp_path / "out" / "preprocessor_config.json").read_text())
    seen = (torch.tensor(pixels) / 255 - torch.tensor(settings["image_mean"])) / torch.tensor(settings["image_std"])
    with torch.no_grad():
        shares = model(pixel_values=seen.permute(2, 0, 1)[None].float()).logits.softmax(-1)[0]
    ours = weft.load(run).answer([str(tmp_path / "picture.png")])[0].more["probabilities"]
    assert list(ours.values()) == pytest.approx(shares.tolist(), abs=1e-5)


def test_sentence_vectors_keep_their_pooling(tmp_path):
    foreign_folders.bert(tmp_path / "folder")
    run = weft.import_checkpoint(tmp_path / "folder", tmp_path / "run", certificate=False)
    tree = json.loads((run.folder / "spec.json").read_text())
    tree["facts"] |= {"pool": "first", "normalize": True, "length": 11}
    (run.folder / "spec.json").write_text(json.dumps(tree))
    weft.export(run.folder, "huggingface", tmp_path / "out", certificate=False)
    again = weft.import_checkpoint(tmp_path / "out", tmp_path / "again", certificate=False)
    assert again.spec.facts == tree["facts"]
    assert torch.equal(again.embed(["the cat"]), weft.load(run.folder).embed(["the cat"]))


def test_what_is_in_memory_counts_and_adapters_are_merged(tmp_path):
    tokenizer = letters()
    run = weft.load(write_run(tmp_path / "run", llama(tokenizer.vocabulary), tokenizer=tokenizer))
    adapt(run.module, 3)
    for _, part in adapters(run.module):
        torch.nn.init.normal_(part.second, std=0.1)
    made = weft.export(run, "huggingface", tmp_path / "out")
    assert made.parity is not None and made.parity < 1e-4
    back = weft.import_checkpoint(tmp_path / "out", tmp_path / "back", certificate=False)
    tokens = torch.randint(0, 9, (2, 13))
    assert torch.allclose(back.module(tokens).logits, run.module(tokens).logits, atol=1e-4)
    assert not torch.allclose(back.module(tokens).logits, weft.load(run.folder).module(tokens).logits, atol=1e-2)
    rounded = weft.load(run.folder, quantize="int8")
    with pytest.raises(WeftError, match="without quantize"):
        weft.export(rounded, "huggingface", tmp_path / "rounded")


def test_a_model_that_maps_to_nothing_says_which_field_stands_in_the_way():
    def refused(name, words, **changes):
        with pytest.raises(WeftError, match=words):
            find_family(weft.preset(name).replace(**changes))

    refused("nano-gpt", "feedforward is 'classic', there only 'gated'")
    refused("nano-moe", r"mixer\.query_key_norm is 'rms'")
    refused("nano-rnn", "mixer is 'recurrence', there only 'attention'")
    refused("nano-series", "family is 'series'")
    refused("nano-t5", "source is 'vectors', there only 'tokens'", source={"kind": "vectors"})
    refused("nano-t5", r"encoder\.width is 64, there only None", **{"encoder.width": 64})
    refused("nano-speech-seq2seq", "source is 'series', there only 'tokens'")
    refused("gpt2", r"feedforward\.bias is False", **{"feedforward.bias": False})
    refused("gpt2", r"mixer\.score_scale is 0\.3", **{"mixer.score_scale": 0.3})
    refused("gpt2", r"mixer\.score is 'capped-dot'", **{"mixer.score": "capped-dot"})


def test_nothing_is_left_half_written_and_nothing_overwritten(tmp_path, monkeypatch):
    tokenizer = letters()
    run = write_run(tmp_path / "run", gpt2(tokenizer.vocabulary), tokenizer=tokenizer)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("mine")
    with pytest.raises(DiskError, match="is there already"):
        weft.export(run, "huggingface", tmp_path / "full")

    def broken(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(export_huggingface, "_write_weights", broken)
    with pytest.raises(DiskError):
        weft.export(run, "huggingface", tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["full", "run"]
    monkeypatch.undo()
    (tmp_path / ".out.exporting" / "1_Pooling").mkdir(parents=True)  # what a killed export left
    weft.export(run, "huggingface", tmp_path / "out", certificate=False)
    assert not (tmp_path / "out" / "1_Pooling").exists() and not (tmp_path / ".out.exporting").exists()
    with pytest.raises(WeftError, match="no format 'tflite'"):
        weft.export(run, "tflite", tmp_path / "more")
    with pytest.raises(WeftError, match="--type is for GGUF"):
        weft.export(run, "huggingface", tmp_path / "more", type="f16")


def test_logits_that_differ_are_refused(tmp_path, monkeypatch):
    tokenizer = letters()
    run = write_run(tmp_path / "run", gpt2(tokenizer.vocabulary), tokenizer=tokenizer)
    honest = export_huggingface.find_family

    def lying(spec, first=None):
        family, config = honest(spec, first)
        return family, config | {"layer_norm_epsilon": 0.5}

    monkeypatch.setattr(export_huggingface, "find_family", lying)
    with pytest.raises(WeftError, match=r"differ by .* nothing was written"):
        weft.export(run, "huggingface", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_command(tmp_path):
    tokenizer = letters()
    run = write_run(tmp_path / "run", gpt2(tokenizer.vocabulary), tokenizer=tokenizer)
    order = ["export", str(run), "--to", "huggingface", "--out", str(tmp_path / "out")]
    found = json.loads(CliRunner().invoke(app, [*order, "--json"]).stdout)
    assert found["path"] == str(tmp_path / "out") and found["parity"] < 1e-4 and found["parameters"] > 1000
    again = CliRunner().invoke(app, order)
    assert again.exit_code == 2 and not again.stdout
    words = CliRunner().invoke(app, [*order[:-1], str(tmp_path / "more"), "--no-certificate"]).stdout
    assert "GPT2LMHeadModel" in words and "not compared" in words and "vllm serve" in words


def test_positions_are_told_as_transformers_5_and_all_before_read_them(tmp_path):
    scaling = {"kind": "llama3", "factor": 7.0, "low": 1.0, "high": 3.0, "original": 131}
    spec = llama(50, **{"positions.base": 5e5, "positions.scaling": scaling})
    _, config = find_family(spec)
    how = {"rope_type": "llama3", "factor": 7.0, "low_freq_factor": 1.0, "high_freq_factor": 3.0}
    how["original_max_position_embeddings"] = 131
    assert config["rope_theta"] == 5e5 and config["rope_scaling"] == how
    assert config["rope_parameters"] == {**how, "rope_theta": 5e5}
    assert "rope_scaling" not in find_family(llama(50))[1]


def test_a_fine_tuned_roberta_stays_one_and_a_missing_pooler_is_made(tmp_path):
    foreign_folders.roberta(tmp_path / "folder", "ForMaskedLM")
    base = weft.import_checkpoint(tmp_path / "folder", tmp_path / "base", certificate=False)
    assert base.task.name == "fill-mask"
    (tmp_path / "data.tsv").write_text("".join(f"text {n}\t{'ab'[n % 2]}\n" for n in range(24)))
    still = {"training.guard": False, "training.threads": 1}
    run = weft.train("classification", tmp_path / "data.tsv", tmp_path / "run", base=base.folder, steps=1, set=still)
    made = weft.export(run, "huggingface", tmp_path / "hf")
    assert made.architecture == "RobertaForSequenceClassification" and made.parity is not None
    assert made.parity < 1e-4


def test_brackets_in_a_path_are_no_markup(tmp_path):
    write_run(tmp_path / "run", llama(letters().vocabulary), tokenizer=letters())
    out = str(tmp_path / "[red]x[_x]")
    result = CliRunner().invoke(app, ["export", str(tmp_path / "run"), "--to", "huggingface", "--out", out])
    assert result.exit_code == 0 and "[red]x[_x]" in result.stdout.replace("\n", "")
    result = CliRunner().invoke(app, ["import", out, "--out", str(tmp_path / "y[_b]")])
    assert result.exit_code == 0 and "y[_b]" in result.stdout.replace("\n", "")
