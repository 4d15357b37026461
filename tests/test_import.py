"""Checkpoints of other libraries as runs: the same logits, the same texts, and tables that read both ways."""

from __future__ import annotations

import copy
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from PIL import Image
from safetensors.torch import load_file, save_file

import weft
from foreign_folders import FOLDERS, LABELS, bart, bert, decoder, gpt2, roberta, t5, vision
from weft.checkpoints.convert_checkpoint import convert_checkpoint
from weft.checkpoints.families import BUILT_IN, FAMILIES, find_family
from weft.checkpoints.families.family import Config
from weft.checkpoints.formats.huggingface_folder import open_huggingface
from weft.checkpoints.parity_certificate import random_inputs, upcast_weights
from weft.checkpoints.run_folder import RunFolder
from weft.cli.main import app

SHARED = Path(os.environ.get("WEFT_DATA", Path(__file__).parents[2] / "shared" / "data"))
# Llama's kin and T5 compute norms and angles in float32 whatever they are given, Marian its sinusoids.
IN_FLOAT32 = ("llama", "mistral", "qwen", "mixtral", "t5", "marian", "neox", "phi3", "gemma")
# Their specs are those of another family too: RoBERTa's of BERT, OPT's of GPT-2, Phi-3's of Llama.
DECODERS = ("gpt2", "llama", "mistral", "mixtral", "neox", "opt", "phi3", "gemma")
SHARED_SPECS = ("roberta", "opt", "phi3")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """`made(name)` gives their model, its folder and our run of it, each made once."""
    root, kept = tmp_path_factory.mktemp("folders"), {}

    def get(name):
        if name not in kept:
            folder = root / name.replace(" ", "-")
            theirs = FOLDERS[name](folder)
            kept[name] = theirs, folder, weft.import_checkpoint(folder, root / f"{folder.name}-run")
        return kept[name]

    return get


@pytest.fixture
def run(capsys, monkeypatch, tmp_path):
    """`run("import", ...)` gives (exit code, stdout, stderr)."""
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "160")

    def call(*words):
        with pytest.raises(SystemExit) as stopped:
            app([str(word) for word in words], prog_name="weft")
        return stopped.value.code or 0, *capsys.readouterr()

    return call


def answers(theirs, module, inputs):
    """(theirs, ours) to the same inputs: logits, or the last states of a bare encoder."""
    if "images" in inputs:
        expected, ours = theirs(pixel_values=inputs["images"]), module(inputs["images"])
        bare = not hasattr(expected, "logits")
        return (expected.last_hidden_state, ours.hidden) if bare else (expected.logits, ours.logits)
    if "target" in inputs:
        expected = theirs(input_ids=inputs["tokens"], decoder_input_ids=inputs["target"]).logits
        return expected, module(inputs["tokens"], inputs["target"]).logits
    tokens = inputs["tokens"]
    expected, ours = theirs(tokens), module(tokens)
    logits = getattr(expected, "prediction_logits", getattr(expected, "logits", None))
    if logits is not None:
        return logits, ours.logits
    if expected.pooler_output is not None:
        return torch.cat((expected.last_hidden_state, expected.pooler_output[:, None]), 1), torch.cat(
            (ours.hidden, ours.logits[:, None]), 1
        )
    return expected.last_hidden_state, ours.hidden


@torch.no_grad()
@pytest.mark.parametrize("name", FOLDERS)
def test_logits_are_those_of_the_other_library(made, name):
    theirs, _, run = made(name)
    wide = not name.startswith(IN_FLOAT32)
    kind = torch.float64 if wide else torch.float32
    inputs = {key: x if key != "images" else x.to(kind) for key, x in random_inputs(run.module.spec).items()}
    expected, ours = answers(theirs.to(kind), run.module.to(kind), inputs)
    theirs.float(), run.module.float()
    torch.testing.assert_close(ours, expected, atol=1e-8 if wide else 1e-4, rtol=0)
    certificate = json.loads((run.folder / "import.json").read_text())["certificate"]
    assert certificate["outputs"] >= (2 if "score" in name else 6)
    assert certificate["difference"] <= 1e-5 * max(1, certificate["largest"])


@pytest.mark.parametrize("name", FOLDERS)
def test_tables_read_both_ways(made, name):
    """Written with the table backwards, our weights are the file's, bit for bit but for rows that nothing uses."""
    _, folder, run = made(name)
    found, ours = open_huggingface(folder), RunFolder(run.folder).read_model()
    stored = load_file(folder / "model.safetensors")
    rows = found.family.table(found.spec)
    written = {name: x for row in rows for name, x in zip(row.theirs, row.transform.write(ours[row.ours]), strict=True)}
    known = {found.family.canonical(key): key for key in stored}
    assert written and {found.family.canonical(key) for key in written} <= set(known)
    for key, tensor in written.items():
        expected = stored[known[found.family.canonical(key)]]
        skipped = 2 if "position" in key and name.startswith(("roberta", "bart", "opt")) else 0
        assert torch.equal(tensor[skipped:], expected[skipped:]), key
    family, config = find_family(found.spec)
    assert family is found.family or name.startswith(SHARED_SPECS)
    again = found.family.write(found.spec)
    assert again["model_type"] == json.loads((folder / "config.json").read_text())["model_type"]
    if family is found.family:
        assert config == {**config, **{key: again[key] for key in ("architectures", "model_type")}}


def test_what_maps_to_no_other_library_says_why():
    with pytest.raises(weft.WeftError, match=r"Llama: feedforward is 'classic', there only 'gated'"):
        find_family(weft.preset("nano-gpt"))
    with pytest.raises(weft.WeftError, match=r"GPT-2: dropout|GPT-2: mixer\.window is 5, there only None"):
        find_family(weft.preset("gpt2").replace(**{"mixer.window": 5}))
    with pytest.raises(weft.WeftError, match="family is 'recurrent-seq2seq', there only"):
        find_family(weft.preset("nano-gru-additive"))
    names = {"gpt2": "GPT-2", "llama-3.2-1b": "Llama", "mistral-7b": "Llama", "mixtral-8x7b": "Llama", "t5-small": "T5"}
    for name, family in (names | {"bert-base": "BERT", "minilm-l6": "BERT", "vit-b16": "ViT"}).items():
        assert find_family(weft.preset(name))[0].name == family
    assert len({family.name for family in BUILT_IN}) == len(BUILT_IN)


def test_a_wrong_table_shows_in_the_certificate(tmp_path, monkeypatch):
    """The comparison can fail: keys and values are mixed up, so nothing is imported."""
    from weft.checkpoints.families.weight_maps import ConcatenatedRows

    decoder(tmp_path / "folder", "Llama", num_key_value_heads=6)
    good = ConcatenatedRows.read
    monkeypatch.setattr(ConcatenatedRows, "read", lambda self, x: good(self, [x[0], *x[:0:-1]]))
    with pytest.raises(weft.WeftError, match="logits differ from those of transformers by"):
        convert_checkpoint(tmp_path / "folder", tmp_path / "run")
    assert not (tmp_path / "run").exists()
    assert convert_checkpoint(tmp_path / "folder", tmp_path / "run", certified=False).certificate is None


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
def test_half_precision_stays_on_the_disk(tmp_path, kind, monkeypatch):
    from weft.checkpoints import parity_certificate

    model = decoder(tmp_path / "folder", "Llama").to(kind)
    model.save_pretrained(tmp_path / "folder")
    monkeypatch.setattr(parity_certificate, "UPCAST_WHOLE", 0)  # as a large model: mapped, and widened piece by piece
    monkeypatch.setattr(parity_certificate, "UPCAST_AT_ONCE", 1000)
    made = convert_checkpoint(tmp_path / "folder", tmp_path / "run")
    assert made.certificate.difference < 1e-4 and made.certificate.within > 1e-4
    assert {tensor.dtype for tensor in load_file(tmp_path / "run" / "model.safetensors").values()} == {kind}
    assert next(weft.load(tmp_path / "run").module.parameters()).dtype == torch.float32
    linear = torch.nn.Linear(3, 5).to(kind)
    x = torch.randn(2, 3)
    with upcast_weights(linear):
        assert torch.equal(linear(x), torch.nn.functional.linear(x, linear.weight.float()) + linear.bias.float())
    assert linear(x.to(kind)).dtype == kind


# --- files -----------------------------------------------------------------------------------------------------------


def test_shards_and_torch_files_give_the_same_run(tmp_path):
    model = gpt2(tmp_path / "one")
    expected = load_file(convert_checkpoint(tmp_path / "one", tmp_path / "run1").run / "model.safetensors")
    shutil.copytree(tmp_path / "one", tmp_path / "many")
    (tmp_path / "many" / "model.safetensors").unlink()
    model.save_pretrained(tmp_path / "many", max_shard_size="40KB")
    assert len(list((tmp_path / "many").glob("model-*.safetensors"))) > 2
    shutil.copytree(tmp_path / "one", tmp_path / "pickled")
    (tmp_path / "pickled" / "model.safetensors").unlink()
    torch.save(model.state_dict(), tmp_path / "pickled" / "pytorch_model.bin")
    convert_checkpoint(tmp_path / "many", tmp_path / "run2", certified=False)
    with pytest.warns(UserWarning, match="weights_only=True"):
        convert_checkpoint(tmp_path / "pickled", tmp_path / "run3", certified=False)
    for name in ("run2", "run3"):
        found = load_file(tmp_path / name / "model.safetensors")
        assert found.keys() == expected.keys() and all(torch.equal(found[key], expected[key]) for key in found)


def test_other_spellings_of_the_same_weights(tmp_path):
    """Old GPT-2 files have no prefix, the mask as a buffer and the head once more; old BERT files gamma and beta."""
    gpt2(tmp_path / "gpt2")
    weights = load_file(tmp_path / "gpt2" / "model.safetensors")
    old = {name.removeprefix("transformer."): tensor for name, tensor in weights.items()}
    old |= {"lm_head.weight": old["wte.weight"].clone(), "h.0.attn.bias": torch.ones(1, 1, 97, 97)}
    save_file(old, tmp_path / "gpt2" / "model.safetensors")
    assert convert_checkpoint(tmp_path / "gpt2", tmp_path / "run1").certificate.holds
    bert(tmp_path / "bert")
    weights = load_file(tmp_path / "bert" / "model.safetensors")
    swap = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    old = {}
    for name, tensor in weights.items():
        for new, before in swap.items():
            name = name.replace(new, before)
        old[f"bert.{name}"] = tensor
    old["bert.embeddings.position_ids"] = torch.arange(19)[None]
    save_file(old, tmp_path / "bert" / "model.safetensors")
    assert convert_checkpoint(tmp_path / "bert", tmp_path / "run2").parameters == sum(
        t.numel() for t in weights.values()
    )


def test_older_configs_say_the_same(tmp_path):
    """rope_theta and rope_scaling stood in the config itself; windows by max_window_layers."""
    tree = {"model_type": "qwen2", "vocab_size": 11, "hidden_size": 12, "intermediate_size": 7, "num_hidden_layers": 3}
    tree |= {"num_attention_heads": 2, "rope_theta": 777.0, "use_sliding_window": True, "sliding_window": 5}
    spec = FAMILIES["llama"].read(Config(tree | {"max_window_layers": 1}), None)
    assert [spec.mixer_of(layer).window for layer in range(3)] == [None, 5, 5] and spec.positions.base == 777.0
    tree |= {"model_type": "llama", "rope_scaling": {"type": "linear", "factor": 3.0}}
    assert FAMILIES["llama"].read(Config(tree), None).positions.scaling.factor == 3.0


# --- uses ------------------------------------------------------------------------------------------------------------


@torch.no_grad()
@pytest.mark.parametrize("name", [name for name in FOLDERS if name.startswith(DECODERS)])
def test_greedy_texts_are_those_of_the_other_library(made, name):
    theirs, folder, run = made(name)
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
    ids = tokenizer("she sells", return_tensors="pt").input_ids
    written = theirs.generate(ids, max_new_tokens=13, do_sample=False, pad_token_id=0)[0, ids.shape[1] :].tolist()
    written = written[: written.index(2)] if 2 in written else written
    answer = run.answer(["she sells"], max_tokens=13, temperature=0.0)[0]
    assert answer.more["tokens"] == run.tokenizer.pieces(written)
    bare = name.startswith(("gpt2", "neox"))
    assert run.task.prompt_format.stops == (2,) and run.task.prompt_format.before == (() if bare else (1,))


@torch.no_grad()
@pytest.mark.parametrize("name", ["t5", "t5, gated", "bart", "marian"])
def test_greedy_translations_are_those_of_the_other_library(made, name):
    theirs, folder, run = made(name)
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
    ids = tokenizer("she sells", return_tensors="pt").input_ids
    how = {"max_new_tokens": 11, "do_sample": False, "num_beams": 1, "forced_eos_token_id": None, "use_cache": False}
    muted = {"bad_words_ids": [[0]]} if name == "marian" else {}
    written = theirs.generate(ids, **how, **muted)[0].tolist()[len((0, *run.task.ends.first)) :]
    written = written[: written.index(2)] if 2 in written else written
    answer = run.answer(["she sells"], max_tokens=11)[0]
    assert answer.more["tokens"] == run.tokenizer.pieces(written)
    assert run.task.ends.start == theirs.config.decoder_start_token_id
    run.task.restore(run.task.options, run.task.facts(), run.tokenizer)
    assert run.task.facts() == run.spec.facts


def test_classes_have_their_names_and_texts_their_frame(made):
    theirs, _, run = made("bert, classes")
    with torch.no_grad():
        expected = theirs(torch.tensor([[2, 5, 6, 7, 3]])).logits.softmax(-1)[0]
    answer = run.answer(["the cat sat"])[0]
    assert list(answer.more["probabilities"]) == list(LABELS.values())
    assert list(answer.more["probabilities"].values()) == pytest.approx(expected.tolist(), abs=1e-5)
    assert answer.output == LABELS[int(expected.argmax())]
    # A text that is too long loses its end, not the mark after it.
    part = run.task.encoder.make_split(["the cat sat on a mat " * 9], [np.zeros(1, np.int64)]).cut(19)
    assert len(part.rows[0]) == 19 and part.rows[0][0] == 2 and part.rows[0][-1] == 3


@pytest.mark.parametrize("pool", ["mean", "cls", "lasttoken"])
def test_embeddings_pool_as_sentence_transformers_does(tmp_path, pool, run):
    theirs = bert(tmp_path / "folder")
    types = ("Transformer", "Pooling", "Normalize")
    rows = [
        {"idx": n, "path": "" if n == 0 else f"{n}_{kind}", "type": f"sentence_transformers.models.{kind}"}
        for n, kind in enumerate(types)
    ]
    (tmp_path / "folder" / "modules.json").write_text(json.dumps(rows))
    (tmp_path / "folder" / "sentence_bert_config.json").write_text('{"max_seq_length": 7}')
    (tmp_path / "folder" / "1_Pooling").mkdir()
    flags = {f"pooling_mode_{name}": name.startswith(pool) for name in ("mean_tokens", "cls_token", "lasttoken")}
    (tmp_path / "folder" / "1_Pooling" / "config.json").write_text(
        json.dumps({"word_embedding_dimension": 42, **flags})
    )
    found = weft.import_checkpoint(tmp_path / "folder", tmp_path / "run")
    texts = ["the cat", "a dog sat on the mats .", ""]
    for text, ids in zip(texts, ([2, 5, 6, 3], [2, 11, 12, 7, 8, 5, 3], [2, 3]), strict=True):
        with torch.no_grad():
            hidden = theirs(torch.tensor([ids])).last_hidden_state[0]
        vector = {"mean": hidden.mean(0), "cls": hidden[0], "lasttoken": hidden[-1]}[pool]
        expected = torch.nn.functional.normalize(vector, dim=0)
        torch.testing.assert_close(found.embed(texts)[texts.index(text)], expected, atol=1e-6, rtol=0)
    assert found.predict("the cat") == pytest.approx(found.embed(["the cat"])[0].tolist())
    (tmp_path / "pairs.tsv").write_text("first\tsecond\tscore\nthe cat\tthe cat\t1.0\nthe cat\ta dog .\t0.1\n")
    code, out, _ = run("eval", tmp_path / "run", tmp_path / "pairs.tsv", "--json")
    assert code == 0 and json.loads(out)["spearman"] == pytest.approx(1.0)
    with pytest.raises(weft.WeftError, match="gives no vectors"):
        weft.load(Path(__file__).parent / "frozen" / "run-1").embed(["a"])


def test_texts_of_any_length_have_the_vectors_that_they_have_alone(made, monkeypatch):
    _, _, run = made("bert")
    module, task = copy.deepcopy(run.module).double(), run.task
    monkeypatch.setattr("weft.data.batching.CALL_ON_CPU", 5)
    rows = [[2, *([5, 6, 7] * n)[:n], 3] for n in (1, 17, 2, 16, 1, 11, 3)]
    together, alone = task.embed_rows(module, rows), torch.cat([task.embed_rows(module, [row]) for row in rows])
    assert together.dtype == torch.float64 and together.shape == (7, module.spec.width)
    torch.testing.assert_close(together, alone, atol=1e-12, rtol=0)


def test_pictures_are_prepared_as_the_preprocessor_says(tmp_path):
    theirs = vision(tmp_path / "folder")
    pixels = np.random.default_rng(0).integers(0, 256, (37, 53, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "picture.png")
    kinds = {
        "scaled": {"size": {"height": 21, "width": 21}, "resample": 3},
        "cut": {"size": {"shortest_edge": 29}, "do_center_crop": True, "crop_size": {"height": 21, "width": 21}},
    }
    for name, how in kinds.items():
        settings = {"image_processor_type": "ViTImageProcessor", "image_mean": [0.3, 0.4, 0.5], **how}
        settings |= {"image_std": [0.2, 0.25, 0.5], "do_rescale": True, "rescale_factor": 1 / 255, "do_resize": True}
        (tmp_path / "folder" / "preprocessor_config.json").write_text(json.dumps(settings))
        run = weft.import_checkpoint(tmp_path / "folder", tmp_path / name, certificate=False)
        picture = Image.open(tmp_path / "picture.png")
        if name == "scaled":
            picture = picture.resize((21, 21), Image.Resampling.BICUBIC)
        else:
            picture = picture.resize((41, 29), Image.Resampling.BILINEAR).crop((10, 4, 31, 25))
        values = (np.asarray(picture) / 255 - [0.3, 0.4, 0.5]) / [0.2, 0.25, 0.5]
        with torch.no_grad():
            logits = theirs(pixel_values=torch.tensor(values).permute(2, 0, 1)[None].float()).logits
        answer = run.answer([str(tmp_path / "picture.png")])[0]
        shares = logits.softmax(-1)[0].tolist()
        assert {LABELS[n]: pytest.approx(share, abs=1e-5) for n, share in enumerate(shares)} == answer.more[
            "probabilities"
        ]
        assert run.task.facts() == run.spec.facts


CHATML = (
    "{% for message in messages %}{{ '<start>' + message['role'] + '\n' + message['content'] + '<stop>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start>assistant' + eos_token }}{% endif %}"
)


@pytest.mark.parametrize("place", ["tokenizer_config.json", "chat_template.jinja"])
def test_a_chat_model_keeps_its_template(tmp_path, place, run):
    decoder(tmp_path / "folder", "Llama")
    settings = {"eos_token": {"content": "<stop>"}, "add_bos_token": False}
    if place.endswith(".jinja"):
        (tmp_path / "folder" / place).write_text(CHATML)
    else:
        settings["chat_template"] = [{"name": "default", "template": CHATML}]
    (tmp_path / "folder" / "tokenizer_config.json").write_text(json.dumps(settings))
    found = weft.import_checkpoint(tmp_path / "folder", tmp_path / "run", certificate=False)
    expected = "<start>user\nhello<stop><start>assistant<stop>"
    ids = found.task.prompt_format.chat_ids([{"role": "user", "content": "hello"}], found.tokenizer)
    assert found.tokenizer.decode(ids, keep_special=True) == expected and ids[0] == 1
    assert found.task.prompt_format.before == ()
    code, out, _ = run("predict", tmp_path / "run", "hello", "--chat", "--temperature", "0", "--max-tokens", "3")
    assert code == 0 and "hello" not in out
    plain = found.task.restore(found.task.options, {}, found.tokenizer)
    with pytest.raises(weft.WeftError, match="not trained to chat"):
        plain.predict(found.module, ["hello"], weft.tasks.task.GenerationOptions(chat=True))


def test_hostile_templates_are_shut_in():
    from weft.tasks.support.language.prompt_format import ChatTemplate

    for text in ("{{ messages.__class__.__mro__ }}", "{% for x in range(10**9) %}{% endfor %}", "{{ nothing.at.all }}"):
        with pytest.raises(weft.WeftError, match="chat template refuses"):
            ChatTemplate(text).render([{"role": "user", "content": "a"}])


# --- the command -----------------------------------------------------------------------------------------------------


def test_the_command_and_what_follows(tmp_path, run):
    decoder(tmp_path / "folder", "Llama")
    code, out, told = run("import", tmp_path / "folder", "--out", tmp_path / "run", "--json")
    found = json.loads(out)
    assert code == 0 and 0 < found["parity"] < 1e-4 and found["parameters"] == 46242 and "importing" in told
    (tmp_path / "text.txt").write_text("she sells sea shells " * 9)
    for words in (["predict", tmp_path / "run", "she"], ["eval", tmp_path / "run", tmp_path / "text.txt"]):
        assert run(*words)[0] == 0
    assert json.loads(run("show", tmp_path / "run", "--json")[1])["parameters"] == 46242
    code, out, _ = run("laws", tmp_path / "run", "--json")
    assert code == 0 and json.loads(out)["broken"] == 0
    code, _, told = run("import", tmp_path / "folder", "--out", tmp_path / "run")
    assert code == 2 and "is there already" in told and told.count("\n") == 1
    code, out, _ = run("import", tmp_path / "folder", "--out", tmp_path / "again", "--no-certificate")
    assert code == 0 and "no certificate: it was not asked for" in out


@pytest.mark.parametrize("make", [bert, roberta, vision, t5, bart], ids=lambda make: make.__name__)
def test_laws_and_show_on_other_families(tmp_path, run, make):
    make(tmp_path / "folder")
    assert run("import", tmp_path / "folder", "--out", tmp_path / "run", "--no-certificate")[0] == 0
    assert run("laws", tmp_path / "run")[0] == 0 and run("show", tmp_path / "run")[0] == 0


@pytest.mark.skipif(not (SHARED / "weights_small").exists(), reason="the folder of real weights is not there")
@torch.no_grad()
def test_a_real_story_token_for_token(tmp_path):
    folder = SHARED / "weights_small" / "stories260K-hf"
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder)
    written = theirs.generate(torch.tensor([[1]]), max_new_tokens=200, do_sample=False)[0, 1:].tolist()
    run = weft.import_checkpoint(folder, tmp_path / "run")
    answer = run.answer([""], max_tokens=200, temperature=0.0)[0]
    assert answer.more["tokens"] == run.tokenizer.pieces(written) and "Lily" in answer.output


def test_a_mistral_that_does_not_speak_of_its_window_has_its_usual_one(tmp_path):
    decoder(tmp_path / "folder", "Mistral", sliding_window=7)
    file = tmp_path / "folder" / "config.json"
    tree = json.loads(file.read_text())
    del tree["sliding_window"]
    file.write_text(json.dumps(tree))
    assert open_huggingface(tmp_path / "folder").spec.mixer[0].window == 4096
    file.write_text(json.dumps(tree | {"sliding_window": None}))
    assert open_huggingface(tmp_path / "folder").spec.mixer[0].window is None


def test_the_certificate_reads_beyond_a_window():
    spec = weft.preset("nano-llama").replace(length=97, **{"mixer.window": 31})
    assert random_inputs(spec)["tokens"].shape[1] == 39
    assert random_inputs(weft.preset("mistral-7b"))["tokens"].shape[1] == 24


@pytest.mark.parametrize("make", [bert, roberta], ids=["bert", "roberta"])
def test_a_pooler_that_nothing_uses_is_left_out(tmp_path, make):
    make(tmp_path / "folder", "ForTokenClassification", id2label=LABELS)
    file = tmp_path / "folder" / "model.safetensors"
    body = "bert" if make is bert else "roberta"
    more = {f"{body}.pooler.dense.weight": torch.randn(42, 42), f"{body}.pooler.dense.bias": torch.randn(42)}
    save_file(load_file(file) | more, file, {"format": "pt"})
    assert set(convert_checkpoint(tmp_path / "folder", tmp_path / "run").left_out) == set(more)


def test_older_folders_of_sentence_transformers_are_certified_too(tmp_path):
    bert(tmp_path / "folder" / "0_Transformer")
    rows = [{"path": "0_Transformer", "type": "sentence_transformers.models.Transformer"}]
    (tmp_path / "folder" / "modules.json").write_text(json.dumps(rows))
    made = convert_checkpoint(tmp_path / "folder", tmp_path / "run")
    assert made.task == "embedding" and made.certificate is not None and made.certificate.holds
