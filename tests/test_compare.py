"""Judging runs: `weft compare`, and `weft eval` with limits, intervals and simple methods, as users type them."""

from __future__ import annotations

import json

import numpy as np
import pytest

import weft
from weft import WeftError
from weft.checkpoints.run_folder import RunFolder
from weft.cli.main import app

TINY = {"width": 16, "layers": 1, "training.threads": 1, "training.guard": False}
WORDS = {"mixer": {"kind": "convolution", "kernel": 3}, "positions": {"kind": "none"}, "training.smoothing": 0.0}
GOOD, BAD = ("fine", "lovely", "superb"), ("dull", "awful", "poor")
REVIEWS = [
    (f"the {what} was {word} {when}", "good" if word in GOOD else "bad")
    for what in ("film", "play", "book", "song", "show")
    for word in (*GOOD, *BAD)
    for when in ("today", "again", "")
]


@pytest.fixture
def call(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path / "cache"))

    def run(*words):
        with pytest.raises(SystemExit) as stopped:
            app([str(word) for word in words], prog_name="weft")
        return stopped.value.code or 0, *capsys.readouterr()

    return run


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Two classifiers, one of which has learned, and their data."""
    folder = tmp_path_factory.mktemp("reviews")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WEFT_CACHE", str(folder / "cache"))
        write(folder / "reviews.tsv", REVIEWS)
        how = {**TINY, **WORDS, "training.batch": 128, "ngrams": None, "data.hidden": 0.0, "data.rarity": 0.0}
        weft.train("classification", folder / "reviews.tsv", folder / "a", steps=1, set=how)
        weft.train("classification", folder / "reviews.tsv", folder / "b", steps=60, set=how)
    return folder


def write(path, rows):
    path.write_text("".join(f"{text}\t{label}\n" for text, label in rows))
    return path


def test_a_run_that_learned_is_better_than_one_that_did_not(home, call):
    data = home / "reviews.tsv"
    found = weft.compare(home / "a", weft.load(home / "b"), data)
    test = found.tests["accuracy"]
    assert found.metrics[1]["accuracy"] > 0.95 > found.metrics[0]["accuracy"] and found.examples == len(REVIEWS)
    gained = found.metrics[1]["accuracy"] - found.metrics[0]["accuracy"]
    assert test.difference == pytest.approx(gained) and test.p_value < 0.01
    assert 0 < test.low <= test.difference <= test.high and found.tests["loss"].difference < 0
    assert f"{home / 'b'} is better in accuracy" in found.verdict and "p = 0.001" in str(found)
    texts = dict(REVIEWS)
    assert found.differing >= len(found.differences) > 0
    assert all(one.a != one.b and texts[one.input] == one.truth for one in found.differences)

    code, out, err = call("compare", home / "a", home / "b", data, "--json", "--limit", 30, "--examples", 2)
    tree = json.loads(out)
    assert code == 0 and tree["examples"] == 30 and len(tree["differences"]) == 2 and "comparing 100%" in err
    assert set(tree["differences"][0]) == {"input", "truth", "a", "b"}
    assert tree == json.loads(
        call("compare", home / "a", home / "b", data, "--json", "--limit", 30, "--examples", 2)[1]
    )
    code, out, _ = call("compare", home / "a", home / "b", data)
    assert code == 0 and "macro f1" in out and "is better in accuracy" in out and "truth:" in out


def test_a_run_is_not_told_from_itself(home):
    found = weft.compare(home / "b", home / "b", home / "reviews.tsv")
    assert found.differing == 0 and found.differences == () and found.tests["accuracy"].p_value == 1.0
    assert "do not tell the two apart" in found.verdict


def test_what_cannot_be_compared_is_refused(home, call, tmp_path):
    other = write(tmp_path / "other.tsv", [(text, f"very {label}") for text, label in REVIEWS])
    weft.train("classification", other, tmp_path / "c", steps=1, set={**TINY, **WORDS})
    code, _, err = call("compare", home / "a", tmp_path / "c", home / "reviews.tsv")
    assert code == 2 and "classes of the runs differ, such as 'bad'" in err and "Traceback" not in err
    (tmp_path / "book.txt").write_text("she sells sea shells. " * 60)
    weft.train("text", tmp_path / "book.txt", tmp_path / "t", steps=1, set={**TINY, "mixer.heads": 2, "length": 32})
    code, _, err = call("compare", home / "a", tmp_path / "t", home / "reviews.tsv")
    assert code == 2 and "is a run of task classification" in err and "of text: compare runs of one task" in err
    code, _, err = call("compare", home / "a", home / "b", home / "reviews.tsv", "--set", "width=3")
    assert code == 2 and "only the reading can be set" in err
    code, _, err = call("compare", home / "a", home / "b", home / "reviews.tsv", "--limit", 0)
    assert code == 2 and "a limit of 0 leaves no example" in err


def test_texts_are_compared_by_stretches_whatever_the_windows(call, tmp_path):
    text = tmp_path / "book.txt"
    text.write_text("".join(f"line {n} of {n * n} has {n % 7} shells and {n % 11} crabs.\n" for n in range(120)))
    small = {**TINY, "mixer.heads": 2, "training.batch": 256}
    for name, steps, more in (
        ("a", 2, {"length": 32}),
        ("b", 25, {"length": 61}),
        ("w", 2, {"data.tokenizer": "words"}),
    ):
        weft.train("text", text, tmp_path / name, steps=steps, set={**small, **more})
    found = weft.compare(tmp_path / "a", tmp_path / "b", text)
    tokens = found.metrics[0]["tokens"]
    assert found.examples == -(-(tokens - 1) // 256) and found.metrics[0]["context"] == 32
    assert found.tests["bits_per_byte"].p_value < 0.05 and found.tests["bits_per_byte"].difference < 0
    assert "shells" in found.differences[0].input and found.differences[0].truth is None
    assert weft.compare(tmp_path / "a", tmp_path / "b", text, limit=3).examples == 3
    other = weft.compare(tmp_path / "a", tmp_path / "w", text)
    assert not other.tests and "compare bits per byte" in other.notes[0] and "no paired test" in other.notes[0]
    code, out, _ = call("compare", tmp_path / "a", tmp_path / "w", text)
    assert code == 0 and "bits per byte" in out and "note: the runs read these data as different examples" in out

    run = weft.load(tmp_path / "b")
    judged = run.evaluate(text)
    low, high = judged["intervals"]["bits_per_byte"]
    assert low < judged["bits_per_byte"] < high and set(judged["references"]) == {"xz"}
    assert judged["loss"] == pytest.approx(run.task.measure(run.module, run.read(text), 512)["loss"], abs=1e-5)
    assert set(judged["training"]["references"]) == {"xz", "byte 6-gram"}
    assert judged["loses_to"] == ["xz"]
    assert run.evaluate(text, limit=2)["tokens"] == 513


def test_eval_takes_some_examples_and_says_how_sure_it_is(home, call):
    code, out, err = call("eval", home / "b", home / "reviews.tsv", "--limit", 12, "--json")
    found = json.loads(out)
    assert code == 0 and found["examples"] == 12 and "evaluating 100%" in err
    assert found["references"] == {"always bad": pytest.approx(0.5)} and found["loses_to"] == []
    assert found["training"]["metric"] == "accuracy" and "bag of bigrams" in found["training"]["references"]
    low, high = found["intervals"]["loss"]
    assert low < found["loss"] < high
    code, out, _ = call("eval", home / "a", home / "reviews.tsv")
    assert code == 0 and "95 %:" in out and "always bad (accuracy)" in out
    assert "On the validation data of training" in out and "bag of bigrams" in out
    code, _, err = call("eval", home / "b", home / "reviews.tsv", "--limit", -1)
    assert code == 2 and "a limit of -1 leaves no example" in err


def test_a_run_without_references_is_evaluated_as_before(home, tmp_path, monkeypatch):
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path / "cache"))
    stored = RunFolder(home / "b").path / "references.json"
    kept = stored.read_text()
    stored.unlink()
    try:
        found = weft.load(home / "b").evaluate(home / "reviews.tsv")
    finally:
        stored.write_text(kept)
    assert found["references"] == {} and found["loses_to"] == [] and "training" not in found


def test_a_tagger_that_says_o_alone_is_told_so(call, tmp_path):
    rows = [(["we", "saw", "it", "in", "Rome" if n % 5 == 0 else "town"], ["O"] * 4 + ["B-LOC" if n % 5 == 0 else "O"])
            for n in range(40)]  # fmt: skip
    file = tmp_path / "a.bio"
    file.write_text("\n".join("".join(f"{w} {t}\n" for w, t in zip(*row, strict=True)) for row in rows))
    sets = ("width=16", "layers=1", "training.threads=1", "training.guard=false", "training.rate=1e-9", "ngrams=null")
    words = [word for one in sets for word in ("--set", one)]
    code, out, err = call("train", "tagging", file, "--out", tmp_path / "run", "--steps", 1, *words)
    assert code == 0, err
    assert "LOSES TO a simple method, always O" in out or "IS NO BETTER THAN a simple method, always O" in out
    code, out, _ = call("eval", tmp_path / "run", file, "--json")
    found = json.loads(out)
    assert found["references"]["always O"] == pytest.approx(0.96) and "always O" in found["loses_to"]
    assert "entity_f1" in found
    code, out, _ = call("predict", tmp_path / "run", "we saw Rome")
    assert code == 0 and out.startswith("we/") and " saw/" in out and " Rome/" in out


def test_labels_come_with_their_probability(home, call):
    code, out, _ = call("predict", home / "b", "the film was superb today")
    assert code == 0 and out.strip().startswith("good (") and out.strip().endswith("%)")
    code, out, _ = call("predict", home / "b", "the film was superb today", "the song was poor")
    assert code == 0 and out.count("%)") == 2 and "bad (" in out


def test_a_forecast_reports_its_test_part_and_no_row_twice(call, tmp_path):
    time = np.arange(200)
    file = tmp_path / "s.csv"
    values = np.sin(time / 5) + 0.1 * np.random.default_rng(1).normal(size=200)
    file.write_text("load\n" + "".join(f"{value:.4f}\n" for value in values))
    sets = ("data.split=120/40/40", "data.horizon=3", "data.context=12", "width=16", "training.threads=1")
    words = [word for one in sets for word in ("--set", one)]
    code, out, err = call("train", "forecast", file, "--out", tmp_path / "run", "--steps", 3, *words)
    assert code == 0, err
    validation, test = out.split("On the test part")
    assert "validation, rows 121 to 160" in validation and "test, rows 161 to 200" in test
    for part in (validation, test):
        assert "nominal 0.8000" in part and part.count("\n  naive") == 1 and part.count("\n  ridge") == 1
    code, out, _ = call("eval", tmp_path / "run", file)
    assert code == 0 and "test, rows 161 to 200" in out and out.count("\n  naive") == 1 and out.count("\n  ridge") == 1
    found = weft.load(tmp_path / "run").evaluate(file)
    assert found["nominal_coverage"] == 0.8 and found["references"]["naive"] == found["naive_mse"]
    assert weft.load(tmp_path / "run").evaluate(file, limit=7)["windows"] == 7


def test_limits_and_examples_of_another_kind_of_split(home):
    run = weft.load(home / "b")
    split = run.read(home / "reviews.tsv")
    assert len(split.limit(1000)) == len(REVIEWS) and split.limit(3).texts == split.texts[0:61:30]
    with pytest.raises(WeftError, match="limit does not go with shots"):
        run.evaluate(home / "reviews.tsv", 2, limit=5)
