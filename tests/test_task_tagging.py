"""Task tagging: CoNLL-U and columns from files to predictions, words with characters, spans, errors."""

from __future__ import annotations

import gzip

import numpy as np
import pytest
import torch

import weft
from weft.data import samples
from weft.data.readers.files import DataError
from weft.data.tokenizers.lexicon import Lexicon, split_treebank_words
from weft.foundation.errors import ShapeError, WeftError
from weft.models.encoder import WordsSpec
from weft.models.presets import preset
from weft.models.teacher_forcing import IGNORED
from weft.parts.word_embedding import WordEmbedding, convolve_characters
from weft.tasks.support.splits.sentences import probabilities
from weft.tasks.tagging import TaggingOptions, TaggingTask
from weft.tasks.task import Size
from weft.training.reporting import Reporter
from weft.training.request import TrainRequest
from weft.training.train import run_training

SMALL = {"width": 16, "mixer": {"kind": "convolution", "kernel": 3}, "positions": {"kind": "none"}, "layers": 1}
SMALL |= {"training.batch": 96, "training.threads": 1, "training.guard": False, "training.smoothing": 0.0}
SENTENCES = [
    ([who, verb, "the", thing, "."], ["PRON", "VERB", "DET", "NOUN", "PUNCT"])
    for who in ("we", "They", "you") for verb in ("painted", "liked", "opened") for thing in ("yard", "door", "letter")
]  # fmt: skip


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path / "cache"))


def universal(sentences):
    lines = []
    for number, (words, tags) in enumerate(sentences):
        lines += [f"# sent_id = {number}", "1-2\tthere's\t_\t_\t_\t_\t_\t_\t_\t_"]
        for place, (word, tag) in enumerate(zip(words, tags, strict=True), 1):
            lines.append(f"{place}\t{word}\t{word}\t{tag}\t{tag[:2]}\t_\t0\troot\t_\t_")
        lines.append("")
    return "\n".join(lines) + "\n"


def columns(sentences):
    return "\n".join("".join(f"{w} {t}\n" for w, t in zip(*sentence, strict=True)) for sentence in sentences)


def write(path, sentences=SENTENCES):
    text = universal(sentences) if ".conllu" in path.name else columns(sentences)
    if path.suffix == ".gz":
        with gzip.open(path, "wt") as file:
            file.write(text)
    else:
        path.write_text(text)
    return path


def prepared(path, seed=0, **options):
    return TaggingTask.prepare([str(path)], TaggingOptions(**options), seed, path.parent / "cache")


@pytest.mark.parametrize("name", ["a.conllu", "a.conllu.gz", "a.txt"])
def test_from_a_file_to_a_prediction(tmp_path, name):
    file, out = write(tmp_path / name), tmp_path / "run"
    run = weft.train("tagging", file, out, steps=40, set=SMALL)
    found = run.evaluate(file)
    assert found["accuracy"] > 0.95 and found["macro_f1"] > 0.9 and found["loss"] < 0.7
    assert found["words"] == 5 * len(SENTENCES) and "entity_f1" not in found
    (answer,) = run.answer(["We cleaned the garden."])
    assert answer.more["tokens"] == ["We", "cleaned", "the", "garden", "."]
    assert answer.output == ["PRON", "VERB", "DET", "NOUN", "PUNCT"], "a new word is known by its ending and its place"
    assert all(0 < share <= 1 for share in answer.more["probabilities"])
    assert run.predict([["We", "cleaned", "the", "garden", "."]]) == [answer.output]
    again = weft.load(out)
    texts = ["you liked it", "x", "a-b c!", "we " * 700]
    assert [a.to_tree() for a in again.answer(texts)] == [a.to_tree() for a in run.answer(texts)]
    assert len(again.predict("we " * 700)) == 700 and again.evaluate(file) == found and again.answer([]) == []


def test_the_column_of_the_tag_and_files_of_validation(tmp_path):
    file, held = write(tmp_path / "a.conllu"), write(tmp_path / "b.conllu", SENTENCES[:2])
    assert prepared(file).task.tags == ("DET", "NOUN", "PRON", "PUNCT", "VERB")
    assert prepared(file, column="5").task.tags == ("DE", "NO", "PR", "PU", "VE")
    both = prepared(file, validation=str(held))
    assert len(both.train) == len(SENTENCES) and len(both.validation) == 2
    split = prepared(file, held_out=0.25)
    assert (len(split.train), len(split.validation)) == (20, 7)
    assert prepared(file, seed=1).validation.texts != prepared(file, seed=0).validation.texts


def test_spans_have_an_f1_of_their_own(tmp_path):
    people = ("Ada", "Bob Gray", "Cleo")
    rows = [
        ([*who.split(), "met", other, "today"], ["B-PER", *["I-PER"] * who.count(" "), "O", "B-PER", "O"])
        for who in people for other in ("Dan", "Eve", "Finn")
    ]  # fmt: skip
    run = weft.train("tagging", write(tmp_path / "a.bio", rows), tmp_path / "run", steps=25, set=SMALL)
    found = run.evaluate(tmp_path / "a.bio")
    assert 0 < found["entity_f1"] <= 1 and found["sentences"] == len(rows)
    perfect = found["accuracy"] == 1
    assert (found["entity_f1"] == 1) == perfect


@pytest.mark.parametrize("name", ["grammar", "pronouns"])
def test_samples(tmp_path, name):
    changes = {**SMALL, "width": 32, "training.batch": 1024}
    request = TrainRequest("tagging", (f"sample:{name}",), tmp_path / "run", steps=12, changes=changes)
    done = run_training(request, Reporter())
    best = samples.sample(name).best
    assert done.leak is None and 0.5 < done.metrics["accuracy"] <= best.value
    assert 0.5 < done.references["most frequent tag"] < 1
    assert done.run.evaluate(f"sample:{name}")["sentences"] == len(samples.sample(name).validation)


def test_batches_are_pure_and_rare_words_are_hidden_most(tmp_path):
    train = prepared(write(tmp_path / "a.txt"), rarity=3.0, held_out=0.1).train
    found = [train.batches(21, 3, epoch) for epoch in range(3)]
    assert len({len(batches) for batches in found}) == 1 and found[0] == train.batches(21, 3, 0) != found[1]
    examples = found[0][0]
    one, same, other, judged = (train.batch(examples, *how) for how in ((3, 0), (3, 0), (3, 1), ()))
    assert torch.equal(one.inputs["tokens"], same.inputs["tokens"])
    assert not torch.equal(one.inputs["tokens"], other.inputs["tokens"])
    assert torch.equal(one.inputs["tokens"][..., 1:], judged.inputs["tokens"][..., 1:]), "characters are never hidden"
    words = [word for row in train.texts for word in row]
    chance = {word: train.forms.hidden[number] for number, word in enumerate(dict.fromkeys(words))}
    assert chance["the"] == pytest.approx(3 / (3 + len(train)), rel=1e-6) and chance["They"] > chance["the"]
    assert not prepared(tmp_path / "a.txt").validation.forms.hidden.any()


def test_long_sentences_are_cut_into_pieces(tmp_path):
    part = prepared(write(tmp_path / "a.txt", [(["a", "b"] * 6, ["X", "Y"] * 6), *SENTENCES]), rarity=0.0).train
    cut = part.cut(5)
    assert sum(cut.lengths) == sum(part.lengths) and max(cut.lengths) == 5
    assert [w for row in cut.texts for w in row] == [w for row in part.texts for w in row]
    assert np.array_equal(np.concatenate(cut.labels), np.concatenate(part.labels))
    assert part.cut(99) is part
    batch = cut.batch(range(len(cut)))
    assert batch.count == cut.tokens and (batch.labels == IGNORED).sum() == batch.tokens - batch.count
    assert torch.equal(batch.labels != IGNORED, batch.inputs["mask"])


@pytest.mark.parametrize("mixer", ["default", "recurrence"])
def test_padding_and_company_change_nothing(tmp_path, mixer):
    task = prepared(write(tmp_path / "a.txt")).task
    spec = task.default_model(Size(32, 2, 64))
    if mixer == "recurrence":
        spec = spec.replace(mixer={"kind": "recurrence", "bidirectional": True}, positions={"kind": "none"})
    module = weft.build(spec, dtype=torch.float64).eval()
    with torch.no_grad():
        for weight in module.parameters():
            weight.normal_(0, 0.3)
    rows = [("we", "liked", "incomprehensibilities", "."), ("x",), ("They", "painted", "a", "b", "c", "d", "e")]
    labels = [("NOUN",) * len(row) for row in rows]
    together = probabilities(module, task._split(list(zip(rows, labels, strict=True))), 999)
    alone = [probabilities(module, task._split([pair]), 1)[0] for pair in zip(rows, labels, strict=True)]
    assert max(float((a - b).abs().max()) for a, b in zip(together, alone, strict=True)) < 1e-10
    assert not weft.laws.check(module).broken


def test_a_word_is_its_own_vector_and_the_strongest_of_its_characters(double):
    part = WordEmbedding(11, 7, width=5, character_width=3, kernel=3, longest=6)
    tokens = torch.tensor([[[4, 2, 3, 6, 0, 0], [9, 1, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0]]])
    letters = part.characters.weight[tokens[0, :, 1:]] * (tokens[0, :, 1:, None] > 0)
    maps = part.taps(letters.transpose(1, 2))
    first = part.words.weight[4] + maps[0, :, :3].amax(-1)
    second = part.words.weight[9] + maps[1, :, :1].amax(-1)
    out = part(tokens)[0]
    assert torch.allclose(out[0], first, atol=1e-12) and torch.allclose(out[1], second, atol=1e-12)
    assert torch.allclose(out[2], part.words.weight[0] + part.taps.bias, atol=1e-12), "no character, no features"
    assert torch.equal(part(tokens[..., :4])[0, :2], out[:2]), "places without a character change nothing"
    table, taps = torch.randn(7, 3, requires_grad=True), torch.randn(5, 3, 3, requires_grad=True)
    assert torch.autograd.gradcheck(lambda e, w: convolve_characters(tokens[0, :, 1:], e, w), (table, taps))


def test_shapes_and_numbers_of_words_are_checked():
    part = WordEmbedding(11, 7, 5, longest=3)
    for shape in ((2, 3), (2, 3, 1), (2, 3, 5)):
        with pytest.raises(ShapeError, match=r"words"):
            part(torch.zeros(shape, dtype=torch.long))
    with pytest.raises(ShapeError, match="token 7, but the vocabulary has 0 to 6"):
        part(torch.tensor([[[3, 7]]]))
    with pytest.raises(ShapeError, match="token 11"):
        part(torch.tensor([[[11, 1]]]))
    with pytest.raises(ShapeError, match="odd kernel"):
        WordEmbedding(11, 7, 5, kernel=2)
    with pytest.raises(WeftError, match="has no center"):
        WordsSpec(kernel=4)


def test_a_preset_gets_words_and_tags(tmp_path):
    task = prepared(write(tmp_path / "a.txt")).task
    spec = task.fit(preset("nano-encoder"))
    assert spec.input.kind == "words" and spec.output.classes == 5 and spec.class_token
    run = weft.train("tagging", tmp_path / "a.txt", tmp_path / "run", preset="nano-encoder", steps=2, set={"layers": 1})
    assert len(run.predict("we liked it")) == 3


def test_texts_are_parted_as_the_training_data_were():
    known = Lexicon.learn([["do", "n't", "it", "'s", "e-mail", "U.S."]], 99)
    assert split_treebank_words("I don't, it's e-mail (U.S.) co-op's", known) == [
        "I", "do", "n't", ",", "it", "'s", "e-mail", "(", "U", ".", "S", ".", ")", "co", "-", "op", "'s",
    ]  # fmt: skip
    plain = Lexicon.learn([["didn't", "it"]], 99)
    assert split_treebank_words("it didn't; they can't", plain) == ["it", "didn't", ";", "they", "can't"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("\n\n", "has no tagged word"),
        ("word\n", "1 columns, but a word and its tag are needed"),
        ("a X\nb X\n\nc X\n", "there is only one tag"),
        ("a X\nb Y\n", "one sentence cannot be split"),
    ],
)
def test_wrong_files(tmp_path, text, message):
    path = tmp_path / "a.txt"
    path.write_text(text)
    with pytest.raises(DataError, match=message):
        prepared(path)


def test_other_errors(tmp_path):
    run = weft.train("tagging", write(tmp_path / "a.txt"), tmp_path / "run", steps=1, set=SMALL)
    with pytest.raises(DataError, match="label 'INTJ' was not seen in training"):
        run.evaluate(write(tmp_path / "b.txt", [(["oh"], ["INTJ"])]))
    with pytest.raises(WeftError, match="a sentence without a word"):
        run.predict(["", "we"])
    with pytest.raises(WeftError, match="sample:pronouns"):
        run.evaluate("sample:digits")
