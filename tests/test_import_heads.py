"""Masked language heads and scores of imported encoders: what is said is what the other library says."""

from __future__ import annotations

import json
import math

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from tokenizers import processors
from typer.testing import CliRunner

import weft
from foreign_folders import WORDS, bert, roberta
from weft.cli.main import app
from weft.data.tokenizers.tokenizer import load_tokenizer
from weft.foundation.errors import WeftError
from weft.tasks.imported.fill_mask import fill
from weft.tasks.support.language.imported_text import PairFrame
from weft.tasks.support.language.prompt_format import Frame

MASK = WORDS.index("[MASK]")


@pytest.fixture(scope="module")
def masked(tmp_path_factory):
    """(their BertForMaskedLM, our run)."""
    root = tmp_path_factory.mktemp("masked")
    theirs = bert(root / "folder", "ForMaskedLM")
    return theirs, weft.import_checkpoint(root / "folder", root / "run")


@pytest.fixture(scope="module")
def scored(tmp_path_factory):
    """(their one-label BERT, our run); texts and pairs are framed as BERT's tokenizer does."""
    root = tmp_path_factory.mktemp("scored")
    theirs = bert(root / "folder", "ForSequenceClassification", num_labels=1)
    return theirs, weft.import_checkpoint(root / "folder", root / "run")


# --- fill-mask -------------------------------------------------------------------------------------------------------


@torch.no_grad()
def test_fillings_are_those_of_the_other_library(masked):
    theirs, run = masked
    logits = theirs(torch.tensor([[2, 5, MASK, 7, 8, MASK, 3]])).logits[0]
    answer = run.answer(["the [MASK] sat on [MASK]"], top=5)[0]
    for place, table in zip((2, 5), answer.more["probabilities"], strict=True):
        best = logits[place].softmax(-1).topk(5)
        assert list(table) == [WORDS[index] for index in best.indices]
        assert list(table.values()) == pytest.approx(best.values.tolist(), abs=2e-6)
    first, second = (next(iter(table)) for table in answer.more["probabilities"])
    assert answer.output == fill(["the ", " sat on ", ""], [first, second])
    one = run.answer(["a [MASK] sat ."])[0]
    assert len(one.more["probabilities"]) == 8 and run.predict("a [MASK] sat .") == one.output
    told = CliRunner().invoke(app, ["predict", str(run.folder), "a [MASK] sat .", "--top", "3"])
    assert told.exit_code == 0 and all(word in told.output for word in list(one.more["probabilities"])[:3])
    with pytest.raises(WeftError, match="generates no tokens"):
        run.answer(["a [MASK]"], steps=True)


def test_pieces_are_put_in_as_they_are_written():
    assert fill(["the cat ", " sat"], ["##s"]) == "the cats sat"
    assert fill(["the ", " sat on ", ""], [" cat", "mat"]) == "the cat sat on mat"
    assert fill(["", "!"], [" Yes"]) == " Yes!"


@torch.no_grad()
def test_pseudo_perplexity_masks_each_token_once(masked, tmp_path):
    """Against one forward pass of the other library per token; a text longer than the model is read in windows."""
    theirs, run = masked
    (tmp_path / "text.txt").write_text("the cat sat on a mat . " * 4)
    ids = run.tokenizer.encode("the cat sat on a mat . " * 4)
    assert len(ids) == 28
    total, right = 0.0, 0
    for part in (ids[:17], ids[17:]):
        for place, truth in enumerate(part, start=1):
            row = torch.tensor([[2, *part, 3]])
            row[0, place] = MASK
            shares = theirs(row).logits[0, place].log_softmax(-1)
            total, right = total - float(shares[truth]), right + int(shares.argmax() == truth)
    found = run.evaluate(tmp_path / "text.txt")
    assert found["masked_tokens"] == 28 and found["accuracy"] == right / 28
    assert found["pseudo_perplexity"] == pytest.approx(math.exp(total / 28), rel=1e-5)
    fewer = run.evaluate(tmp_path / "text.txt", options={"masked": 5})
    assert fewer["masked_tokens"] == 5 and fewer["loss"] != found["loss"]


def test_every_run_understands_the_same_mask(tmp_path):
    """RoBERTa's own mask is <mask>; [MASK] is understood too."""
    theirs = roberta(tmp_path / "folder", "ForMaskedLM")
    run = weft.import_checkpoint(tmp_path / "folder", tmp_path / "run")
    assert run.task.mask_token == "<mask>" and run.task.facts() == run.spec.facts
    own, general = (run.answer([text], top=200)[0] for text in ("a <mask> b", "a [MASK] b"))
    assert len(own.more["probabilities"]) == 200, "bytes that look alike are told apart"
    assert own.output == general.output and own.more == general.more
    ids = [*run.task.frame.before, *run.tokenizer.encode("a <mask> b"), *run.task.frame.after]
    with torch.no_grad():
        # Their positions skip token 1, their padding, which begins a text in this vocabulary.
        places = torch.arange(2, 2 + len(ids))[None]
        shares = theirs(torch.tensor([ids]), position_ids=places).logits[0, ids.index(run.task.mask)].softmax(-1)
    assert next(iter(own.more["probabilities"].values())) == pytest.approx(float(shares.max()), abs=2e-6)


def test_what_cannot_be_filled_in_is_refused(masked, tmp_path):
    _, run = masked
    with pytest.raises(WeftError, match=r"nothing to fill in in 'the cat': write \[MASK\]"):
        run.predict("the cat")
    with pytest.raises(WeftError, match="a mask is at token 18 of the text, but this model reads 17"):
        run.predict("the cat sat on a mat . the cat sat on a mat . the cat sat [MASK]")
    (tmp_path / "empty.txt").write_text(" ")
    with pytest.raises(WeftError, match="no text to mask"):
        run.evaluate(tmp_path / "empty.txt")
    with pytest.raises(WeftError, match="fill-mask are imported, not trained"):
        run.task.prepare([], run.task.options, 0, tmp_path)


def test_the_head_is_the_embedding_or_refused(tmp_path):
    """Copies of tied tensors may be stored; one that differs is refused, and so is a config that unties them."""
    bert(tmp_path / "folder", "ForMaskedLM")
    weights = load_file(tmp_path / "folder" / "model.safetensors")
    copy = {"cls.predictions.decoder.weight": weights["bert.embeddings.word_embeddings.weight"].clone()}
    copy["cls.predictions.decoder.bias"] = weights["cls.predictions.bias"].clone()
    save_file(weights | copy, tmp_path / "folder" / "model.safetensors")
    run = weft.import_checkpoint(tmp_path / "folder", tmp_path / "run")
    assert run.task.name == "fill-mask"
    copy["cls.predictions.decoder.weight"][5] += 1
    save_file(weights | copy, tmp_path / "folder" / "model.safetensors")
    with pytest.raises(WeftError, match=r"cls\.predictions\.decoder\.weight and .* differ"):
        weft.import_checkpoint(tmp_path / "folder", tmp_path / "other")
    config = json.loads((tmp_path / "folder" / "config.json").read_text())
    (tmp_path / "folder" / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": False}))
    with pytest.raises(WeftError, match="tie_word_embeddings to False"):
        weft.import_checkpoint(tmp_path / "folder", tmp_path / "other")


def test_sentence_vectors_of_a_masked_language_model_stay_vectors(tmp_path):
    bert(tmp_path / "folder", "ForMaskedLM")
    kinds = [{"idx": 0, "path": "", "type": "sentence_transformers.models.Transformer"}]
    (tmp_path / "folder" / "modules.json").write_text(json.dumps(kinds))
    run = weft.import_checkpoint(tmp_path / "folder", tmp_path / "run")
    assert run.task.name == "embedding" and run.embed(["the cat"]).shape == (1, 42)


def test_a_vocabulary_without_a_mask_is_refused(tmp_path):
    bert(tmp_path / "folder", "ForMaskedLM")
    text = (tmp_path / "folder" / "tokenizer.json").read_text().replace("[MASK]", "[HIDDEN]")
    (tmp_path / "folder" / "tokenizer.json").write_text(text)
    with pytest.raises(WeftError, match=r"no mask token \(\[MASK\] or <mask>\)"):
        weft.import_checkpoint(tmp_path / "folder", tmp_path / "run")


# --- regression ------------------------------------------------------------------------------------------------------


@torch.no_grad()
def test_scores_of_texts_and_pairs_are_those_of_the_other_library(scored):
    theirs, run = scored
    assert run.task.name == "regression" and run.task.pair == PairFrame((3,), 1)
    one = theirs(torch.tensor([[2, 5, 6, 3]])).logits[0, 0]
    ids, kinds = torch.tensor([[2, 5, 6, 3, 11, 12, 7, 3]]), torch.tensor([[0, 0, 0, 0, 1, 1, 1, 1]])
    two = theirs(ids, token_type_ids=kinds).logits[0, 0]
    found = run.predict(["the cat", "the cat\ta dog sat", ("the cat", "a dog sat")], batch=2)
    assert found == pytest.approx([float(one), float(two), float(two)], abs=1e-6)
    assert abs(float(two - theirs(ids).logits[0, 0])) > 1e-3, "segments count"


def test_long_pairs_are_cut_as_the_tokenizer_does(scored):
    _, run = scored
    engine = load_tokenizer(run.folder / "tokenizer.json").engine
    frame, pair = Frame((2,), (3,)), PairFrame((3,), 1)
    for first, second in ((3, 40), (40, 3), (40, 41), (41, 40), (9, 9), (5, 5)):
        texts = "cat " * first, "dog " * second
        for most in (15, 16):
            engine.enable_truncation(most)
            expected = engine.encode(*texts)
            found = pair.put(frame, *(run.tokenizer.encode(text) for text in texts), most)
            assert found == (list(expected.ids), list(expected.type_ids))


@torch.no_grad()
def test_correlations_with_a_table(scored, tmp_path):
    _, run = scored
    pairs = [("the cat", "a dog"), ("a mat", "the dog"), ("sat .", "on a mat"), ("a", "the")]
    scores = run.predict(pairs)
    rows = "".join(f"{a}\t{b}\t{score * 3 + 1}\n" for (a, b), score in zip(pairs, scores, strict=True))
    (tmp_path / "table.tsv").write_text("first\tsecond\tscore\n" + rows)
    found = run.evaluate(tmp_path / "table.tsv")
    assert found["spearman"] == pytest.approx(1) and found["pearson"] == pytest.approx(1) and found["examples"] == 4
    expected = sum((2 * score + 1) ** 2 for score in scores) / 4
    assert found["mse"] == pytest.approx(expected, rel=1e-4)
    (tmp_path / "bad.tsv").write_text("a\tb\t1\na\tb\tmuch\n")
    with pytest.raises(WeftError, match=r"bad\.tsv, line 2: one or two texts and a number"):
        run.evaluate(tmp_path / "bad.tsv")


def test_a_sigmoid_is_kept_and_written_back(tmp_path):
    bert(tmp_path / "folder", "ForSequenceClassification", num_labels=1)
    plain = weft.import_checkpoint(tmp_path / "folder", tmp_path / "plain", certificate=False).predict("the cat")
    config = json.loads((tmp_path / "folder" / "config.json").read_text())
    name = "torch.nn.modules.activation.Sigmoid"
    (tmp_path / "folder" / "config.json").write_text(
        json.dumps(config | {"sentence_transformers": {"activation_fn": name}})
    )
    run = weft.import_checkpoint(tmp_path / "folder", tmp_path / "run")
    assert run.predict("the cat") == pytest.approx(1 / (1 + math.exp(-plain)), abs=1e-6)
    weft.export(run, "huggingface", tmp_path / "out")
    again = weft.import_checkpoint(tmp_path / "out", tmp_path / "again", certificate=False)
    assert again.spec.facts == run.spec.facts == run.task.facts()
    changed = config | {"sbert_ce_default_activation_function": "torch.nn.modules.activation.Tanh"}
    (tmp_path / "folder" / "config.json").write_text(json.dumps(changed))
    with pytest.raises(WeftError, match=r"activation_fn 'torch\.nn\.modules\.activation\.Tanh'"):
        weft.import_checkpoint(tmp_path / "folder", tmp_path / "other")


def test_what_has_no_score_is_refused(scored, tmp_path):
    _, run = scored
    with pytest.raises(WeftError, match="3 texts in one input"):
        run.predict("a\tb\tc")
    alone = weft.load(run.folder)
    alone.task.pair = None
    with pytest.raises(WeftError, match="reads one text, but two are given"):
        alone.predict("a\tb")
    for changes, words in (
        ({"problem_type": "multi_label_classification"}, "problem_type to 'multi_label_classification'"),
        ({"architectures": ["BertForTokenClassification"]}, "one label for each token"),
    ):
        bert(tmp_path / words[:3], "ForSequenceClassification", num_labels=1)
        config = json.loads((tmp_path / words[:3] / "config.json").read_text())
        (tmp_path / words[:3] / "config.json").write_text(json.dumps(config | changes))
        with pytest.raises(WeftError, match=words):
            weft.import_checkpoint(tmp_path / words[:3], tmp_path / "run")


def test_a_tokenizer_without_pairs_reads_single_texts(tmp_path):
    roberta(tmp_path / "folder", "ForSequenceClassification", num_labels=1)
    run = weft.import_checkpoint(tmp_path / "folder", tmp_path / "run", certificate=False)
    assert run.task.pair is None
    tokenizer = load_tokenizer(tmp_path / "folder" / "tokenizer.json")
    ends = [(name, tokenizer.id_of(name)) for name in ("<start>", "<stop>")]
    tokenizer.engine.post_processor = processors.TemplateProcessing(
        single="<start> $A <stop>", pair="<start> $A <stop> <stop> $B <stop>", special_tokens=ends
    )
    tokenizer.save(tmp_path / "folder" / "tokenizer.json")
    run = weft.import_checkpoint(tmp_path / "folder", tmp_path / "pairs", certificate=False)
    stop = ends[1][1]
    assert run.task.pair == PairFrame((stop, stop), 0)


@pytest.mark.parametrize(("kind", "words"), [("masked", "the [MASK] sat"), ("scored", "the cat\ta dog")])
def test_looking_and_laws(request, tmp_path, kind, words):
    _, run = request.getfixturevalue(kind)
    shown = CliRunner().invoke(app, ["look", str(run.folder), words, "--out", str(tmp_path / "page.html")])
    assert shown.exit_code == 0, shown.output
    page = (tmp_path / "page.html").read_text()
    assert ("The model says: the" in page) == (kind == "masked")
    assert not [f for f in weft.laws.check(run.module).findings if f.verdict == "broken"]


def test_fine_tuning_starts_from_either(masked, scored, tmp_path):
    (tmp_path / "data.tsv").write_text("".join(f"{WORDS[5 + n % 7]} cat\t{'ab'[n % 2]}\n" for n in range(24)))
    still = {"training.guard": False, "training.threads": 1}
    for number, (_, base) in enumerate((masked, scored)):
        out = tmp_path / f"run{number}"
        run = weft.train("classification", tmp_path / "data.tsv", out, base=base.folder, steps=1, set=still)
        made = weft.export(run, "huggingface", tmp_path / f"hf{number}")
        assert made.architecture == "BertForSequenceClassification" and made.parity < 1e-4
        assert transformers.AutoConfig.from_pretrained(tmp_path / f"hf{number}").num_labels == 2
