"""Runs trained on as another task or with other classes: the body goes on, the last layer is learned anew."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file

import foreign_folders
import weft
from weft.checkpoints.run_folder import RunFolder
from weft.data.tokenizers.tokenizer import load_tokenizer, train_tokenizer
from weft.foundation.errors import WeftError
from weft.models.teacher_forcing import IGNORED
from weft.tasks.support.inputs.tag_encoders import PieceTagEncoder
from weft.tasks.support.language.prompt_format import Frame
from weft.training.reporting import Reporter

R = 3
FAST = {"training.batch": 61, "training.threads": 1, "training.guard": False}
STILL = FAST | {"training.rate": 1e-12, "training.weight_decay": 0.0, "training.ema": 0.0}
MOODS = {"good": "the cat sat on mat", "bad": "a dog on the mats", "odd": "cats . dogs ."}


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bert")
    foreign_folders.bert(folder / "folder")
    return weft.import_checkpoint(folder / "folder", folder / "run", certificate=False).folder


@pytest.fixture(scope="module")
def vit(tmp_path_factory):
    folder = tmp_path_factory.mktemp("vit")
    foreign_folders.vision(folder / "folder")
    return weft.import_checkpoint(folder / "folder", folder / "run", certificate=False).folder


def labeled(path: Path, *labels: str) -> Path:
    texts = list(MOODS.values())
    path.write_text("".join(f"{texts[n % len(labels)]}\t{labels[n % len(labels)]}\n" for n in range(8 * len(labels))))
    return path


def tagged(path: Path) -> Path:
    path.write_text("the D\ncats N\nsat V\n\na D\ndogs N\n. P\n\n" * 9)
    return path


def pictures(path: Path, classes: int) -> Path:
    random = np.random.default_rng(0)
    x = random.integers(0, 256, (8 * classes, 11, 11, 3), dtype=np.uint8)
    np.savez(path, x=x, y=np.arange(len(x)) % classes)
    return path


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor], but: str) -> bool:
    """Whether all weights but those that begin so are equal in both."""
    names = [name for name in one if not name.startswith(but)]
    return bool(names) and all(torch.allclose(one[name], other[name], atol=1e-7) for name in names)


def test_an_embedding_model_becomes_a_classifier(tmp_path, bert):
    data = labeled(tmp_path / "moods.tsv", "good", "bad", "odd")
    run = weft.train("classification", data, tmp_path / "run", base=bert, steps=1, set=STILL)
    before, after = weights(bert), weights(run.folder)
    assert same(before, after, "head.linear") and set(after) - set(before) == {"head.linear.weight", "head.linear.bias"}
    assert after["head.linear.weight"].shape == (3, 42) and run.spec.facts["before"] == [2]
    assert run.spec.data["hidden"] == 0.0 and run.spec.data["rarity"] == 0.0
    learned = weft.train(
        "classification", data, tmp_path / "more", base=bert, steps=60, set=FAST | {"training.rate": 3e-3}
    )
    assert learned.evaluate(data)["accuracy"] > 0.9
    made = weft.export(learned, "huggingface", tmp_path / "hf")
    assert made.architecture == "BertForSequenceClassification" and made.parity is not None and made.parity < 1e-4
    theirs = transformers.BertForSequenceClassification.from_pretrained(tmp_path / "hf")
    assert theirs.config.id2label == {0: "bad", 1: "good", 2: "odd"}


def test_known_labels_keep_their_layer_and_others_begin_anew(tmp_path, bert):
    first = labeled(tmp_path / "first.tsv", "good", "bad", "odd")
    base = weft.train("classification", first, tmp_path / "base", base=bert, steps=2, set=FAST).folder
    few = labeled(tmp_path / "few.tsv", "good", "odd")
    again = weft.train("classification", few, tmp_path / "again", base=base, steps=1, set=STILL)
    assert again.spec.facts["classes"] == ["bad", "good", "odd"] and same(weights(base), weights(again.folder), "none")
    other = labeled(tmp_path / "other.tsv", "ham", "spam", "none")
    notes = NoteReporter()
    run = weft.train("classification", other, tmp_path / "run", base=base, steps=1, set=STILL, reporter=notes)
    assert run.spec.facts["classes"] == ["ham", "none", "spam"] and "learned anew" in notes.heard[0]
    one, two = weights(base), weights(run.folder)
    assert same(one, two, "head.linear")
    assert (one["head.linear.weight"] - two["head.linear.weight"]).abs().max() > 1e-3


class NoteReporter(Reporter):
    def __init__(self):
        self.heard: list[str] = []

    def on_note(self, text):
        self.heard.append(text)


def test_a_vision_model_learns_other_classes(tmp_path, vit):
    data = pictures(tmp_path / "pictures.npz", 2)
    run = weft.train("images", data, tmp_path / "run", base=vit, steps=1, set=STILL)
    assert run.spec.facts["classes"] == ["0", "1"] and weights(run.folder)["head.linear.weight"].shape[0] == 2
    assert same(weights(vit), weights(run.folder), "head.linear")
    assert run.spec.facts["mean"] == [0.3, 0.4, 0.5]


def test_a_vision_model_without_classes_says_so(tmp_path):
    foreign_folders.vision(tmp_path / "folder", kind="Model")
    bare = weft.import_checkpoint(tmp_path / "folder", tmp_path / "bare")
    data = pictures(tmp_path / "pictures.npz", 3)
    with pytest.raises(WeftError, match="no classes yet"):
        bare.evaluate(data)
    run = weft.train("images", data, tmp_path / "run", base=bare.folder, steps=1, set=STILL)
    assert set(run.evaluate(data)) >= {"accuracy"} and same(weights(bare.folder), weights(run.folder), "none")


def test_tags_by_pieces(tmp_path, bert):
    data = tagged(tmp_path / "tags.conll")
    run = weft.train("tagging", data, tmp_path / "run", base=bert, steps=60, set=FAST | {"training.rate": 3e-3})
    assert run.evaluate(data)["accuracy"] > 0.9 and "head.hidden.weight" not in weights(run.folder)
    again = weft.load(run.folder)
    answer = again.answer(["a dogs."])[0]
    assert answer.output == ["D", "N", "P"] and answer.more["tokens"] == ["a", "dogs", "."]
    made = weft.export(run, "huggingface", tmp_path / "hf")
    assert made.architecture == "BertForTokenClassification" and made.parity is not None and made.parity < 1e-4
    back = weft.import_checkpoint(tmp_path / "hf", tmp_path / "back")
    assert back.predict("a dogs.") == answer.output


def test_a_word_is_labeled_at_its_first_piece_and_long_rows_are_cut_between_words(tmp_path):
    foreign_folders.words(tmp_path)
    tokenizer = load_tokenizer(tmp_path / "tokenizer.json")
    encoder = PieceTagEncoder(tokenizer, Frame((2,), (3,)))
    words = ("the", "cats", "sat", "\u200b", "dogs", ".")
    part = encoder.make_split([words], [np.arange(6)])
    none = IGNORED
    assert part.rows[0].tolist() == [2, 5, 6, 10, 7, 1, 12, 10, 13, 3]
    assert part.labels[0].tolist() == [none, 0, 1, none, 2, 3, 4, none, 5, none]
    cut = part.cut(6)
    assert [row.tolist() for row in cut.rows] == [[2, 5, 6, 10, 7, 3], [2, 1, 12, 10, 13, 3]]
    assert [row.tolist() for row in cut.labels] == [[none, 0, 1, none, 2, none], [none, 3, 4, none, 5, none]]
    assert cut.texts == (words[:3], words[3:])
    assert [row.tolist() for row in part.cut(3).rows] == [[2, n, 3] for n in (5, 6, 7, 1, 12, 13)]
    assert np.concatenate([part.cut(3).answers(n) for n in range(6)]).tolist() == [0, 1, 2, 3, 4, 5]
    with pytest.raises(WeftError, match="no room"):
        part.cut(2)


def test_pieces_with_a_blank_in_front_belong_to_the_word_behind_it():
    tokenizer = train_tokenizer("bpe", ["the cats sat on the mats and the dogs " * 9], vocabulary=290)
    words = ["the", "cats", "sat"]
    part = PieceTagEncoder(tokenizer).make_split([words], [np.arange(3)])
    assert part.rows[0].tolist() == tokenizer.encode("the cats sat")
    starts = np.flatnonzero(part.labels[0] != IGNORED)
    pieces = [tokenizer.decode(row) for row in np.split(part.rows[0], starts[1:])]
    assert pieces == ["the", " cats", " sat"]


def test_adapters_and_a_new_head_learn_together_and_resume_to_the_same_bits(tmp_path, bert):
    data = labeled(tmp_path / "moods.tsv", "good", "bad")
    often = FAST | {"training.evaluate_every": 3, "training.checkpoint_every": 3, "training.lora": R}

    def tune(name, reporter=None, resume=False):
        more = {} if resume else {"base": bert, "steps": 9, "set": often}
        return weft.train("classification", data, tmp_path / name, resume=resume, reporter=reporter, **more)

    whole = tune("whole")
    snapshot = RunFolder(whole.folder).read_snapshot()
    assert snapshot is not None
    moved = {name for name in snapshot.tensors if name.startswith("optimizer.")}
    assert any("head.linear.weight" in name for name in moved) and any("head.hidden" in name for name in moved)
    before = weights(bert)
    assert torch.equal(snapshot.tensors["weight.embedding.weight"], before["embedding.weight"])
    assert torch.equal(
        snapshot.tensors["weight.stack.blocks.0.mixer.qkv.weight"], before["stack.blocks.0.mixer.qkv.weight"]
    )
    for stop in (1, 6):
        with pytest.raises(KeyboardInterrupt):
            tune(f"broken{stop}", StopAfter(stop))
        tune(f"broken{stop}", resume=True)
        assert (tmp_path / f"broken{stop}" / "model.safetensors").read_bytes() == (
            whole.folder / "model.safetensors"
        ).read_bytes()


class StopAfter(Reporter):
    def __init__(self, step):
        self.step = step

    def on_evaluation(self, step, loss, best):
        if step >= self.step:
            raise KeyboardInterrupt


def test_what_cannot_be_taken_over_is_refused(tmp_path, bert, vit):
    data = labeled(tmp_path / "moods.tsv", "good", "bad")
    with pytest.raises(WeftError, match="give --from a run of task classification or embedding"):
        weft.train("classification", data, tmp_path / "run", base=vit, steps=1)
    with pytest.raises(WeftError, match=r"data\.tokenizer was decided"):
        weft.train("classification", data, tmp_path / "run", base=bert, steps=1, set={"data.tokenizer": "bpe"})
