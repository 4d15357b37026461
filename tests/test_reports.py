"""The report of a training: what is in it, what it flags, that it is safe, bounded, and never in the way."""

from __future__ import annotations

import json
import re
from functools import cache
from types import SimpleNamespace

import numpy as np
import pytest

import weft
from browser import Browser, find_browser
from own_modules import TinyGPT
from weft.foundation.errors import WeftError
from weft.reports import report as report_module
from weft.reports.command import planned_options, reproducing_command
from weft.reports.report import REPORT, report_training, write_report
from weft.reports.score_panels import confusion_panel, worst_examples, worst_panel, worst_pictures_panel
from weft.tasks.support.evaluation.data_statistics import data_statistics, find_duplicates
from weft.tasks.support.evaluation.example_scores import ExampleScores
from weft.tasks.support.splits.split import Split
from weft.training.reporting import Reporter
from weft.training.request import TrainRequest
from weft.training.train import run_training

SMALL = {"width": 16, "layers": 2, "training.batch": 256, "training.threads": 1}
NASTY = "</script><script>window.hurt=1</script>"


class Notes(Reporter):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def on_note(self, text: str) -> None:
        self.notes.append(text)


def page_data(folder) -> dict:
    text = (folder / REPORT).read_text(encoding="utf-8")
    assert len(text.encode()) < 2_000_000
    assert not re.search(r"https?:|@import|url\(|\bsrc\s*=|\bhref\s*=|fetch\(|XMLHttp", text)
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    return json.loads(found[1])


def panels_of(folder) -> dict[str, dict]:
    return {panel["title"]: panel for panel in page_data(folder)["panels"]}


def write_moods(path, extra=()):
    rows = [f"{word} thing {n}\t{label}" for n in range(40) for word, label in (("good", "pos"), ("bad", "neg"))]
    path.write_text("text\tlabel\n" + "\n".join([*rows, *extra]) + "\n")
    return path


def train_moods(folder, reporter=None, name="run", **more):
    held = write_moods(folder / "held.tsv", [f"new {NASTY} {n}\t{('pos', 'neg')[n % 2]}" for n in range(7)])
    write_moods(folder / "train.tsv", [f"other {n}\tneg" for n in range(13)])
    changes = {**SMALL, "data.validation": str(held), **more}
    return weft.train(
        "classification", folder / "train.tsv", folder / name, steps=6, set=changes, reporter=reporter or Reporter()
    )


def test_a_classifier_has_its_whole_report(tmp_path):
    notes = Notes()
    run = train_moods(tmp_path, notes)
    found = panels_of(run.folder)
    for title in (
        "Plan and what happened",
        "Metrics",
        "Reliability table",
        "Confusion matrix",
        "Worst errors",
        "Data",
        "Classes",
        "The command that trains the same again",
        "Accuracy when the model may abstain",
    ):
        assert title in found, title  # fmt: skip
    assert any("looked at" in title for title in found)  # attention, as `weft look` draws it
    steps = next(row for row in found["Plan and what happened"]["rows"] if row[0] == "steps")
    assert steps == ["steps", "6", "6"]
    names = [row[0] for row in found["Metrics"]["rows"]]
    assert names[0] == "accuracy" and "ece" in names and any("bag of bigrams" in name for name in names)
    assert re.fullmatch(r"0\.\d{4} to [01]\.\d{4}", found["Metrics"]["rows"][0][2])
    assert [row[1] for row in found["Classes"]["rows"]] == ["53 (57.0%)", "40 (43.0%)"]
    # 80 of 87 held-out texts are those of training: flagged in words, at the top, and told at the end of training.
    data = found["Data"]
    assert ["examples in both parts", "", "80 of 87 (92.0%)"] in data["rows"]
    assert data["marked"] == [data["rows"].index(["examples in both parts", "", "80 of 87 (92.0%)"])]
    assert sum(row[0].startswith("such as example") for row in data["rows"]) == 3
    flagged = page_data(run.folder)["left_out"]
    assert any("data leak" in sentence for sentence in flagged)
    assert sum("the data leak: 80 of 87" in note for note in notes.notes) == 1
    command = found["The command that trains the same again"]["rows"][0][1]
    assert command.startswith("weft train classification") and "--steps 6" in command and "--seed 0" in command


def test_clean_data_are_not_flagged(tmp_path):
    notes = Notes()
    write_moods(tmp_path / "a.tsv")
    run = weft.train("classification", tmp_path / "a.tsv", tmp_path / "run", steps=1, set=SMALL, reporter=notes)
    assert not any("leak" in note for note in notes.notes)
    assert "none of" in panels_of(run.folder)["Data"]["note"].lower()


class Rows(Split):
    """Examples that are their own identity."""

    def __init__(self, *rows: str) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def tokens(self) -> int:
        return len(self.rows)

    def identities(self):
        return ((row, row) for row in self.rows)

    def batch(self, examples, seed=None, epoch=0):
        raise NotImplementedError


def test_duplicates_are_counted():
    found = find_duplicates(Rows("a", "b", "c", "a"), Rows("a", "x", "a", "c", "y"))
    assert (found.found, found.held, found.examples, found.complete) == (3, 5, ("a", "a", "c"), True)
    assert found.share == 0.6 and found.flagged and "3 of 5" in found.describe()
    few = find_duplicates(Rows("a"), Rows("a", *map(str, range(100))))
    assert few.found == 1 and not few.flagged and "leak" not in few.describe()
    assert "has no examples" in find_duplicates(Rows("a"), Rows()).describe()


def test_comparing_takes_no_more_than_its_time():
    found = find_duplicates(Rows("a", "b"), Rows("b", "c", "d"), seconds=-1.0)
    assert not found.complete and found.held == 1 and found.learned == 1 and "time to compare" in found.describe()


def test_texts_are_compared_whatever_their_case_and_blanks(tmp_path):
    first = write_moods(tmp_path / "a.tsv", ["The  SAME text\tpos"])
    (tmp_path / "b.tsv").write_text("text\tlabel\nthe same  Text\tpos\nanother\tneg\n")
    changes = {**SMALL, "data.validation": str(tmp_path / "b.tsv")}
    run = weft.train("classification", first, tmp_path / "run", steps=1, set=changes)
    assert ["examples in both parts", "", "1 of 2 (50.0%)"] in panels_of(run.folder)["Data"]["rows"]


def test_images_windows_and_paragraphs_are_recognized(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 255, (23, 7, 7, 1), dtype=np.uint8)
    pixels[20:] = pixels[:3]
    np.savez(tmp_path / "a.npz", images=pixels[:20, ..., 0], labels=np.arange(20) % 2)
    np.savez(tmp_path / "b.npz", images=pixels[15:, ..., 0], labels=np.arange(15, 23) % 2)
    small = {**SMALL, "data.validation": str(tmp_path / "b.npz"), "data.augmentation": "none"}
    run = weft.train("images", tmp_path / "a.npz", tmp_path / "images", steps=1, set=small)
    assert ["examples in both parts", "", "8 of 8 (100.0%)"] in panels_of(run.folder)["Data"]["rows"]
    again = "one paragraph that is long enough to be recognized when it comes again in the part that is held out"
    text = [
        f"this is paragraph number {n}, which is told once and only once, and then it is never told again"
        for n in range(23)
    ]
    (tmp_path / "a.txt").write_text("\n\n".join([again, *text]))
    (tmp_path / "b.txt").write_text("\n\n".join([again.upper(), "short", "quite another paragraph " * 7]))
    small = {**SMALL, "data.validation": str(tmp_path / "b.txt"), "data.tokenizer": "bytes"}
    run = weft.train("text", tmp_path / "a.txt", tmp_path / "text", steps=1, set=small)
    assert ["paragraphs in both parts", "", "1 of 2 (50.0%)"] in panels_of(run.folder)["Data"]["rows"]
    wave = np.tile(np.arange(7.0), 40)  # repeats itself, so windows of the end are known
    (tmp_path / "w.csv").write_text("x\n" + "\n".join(map(str, wave)) + "\n")
    small = {"training.threads": 1, "width": 16, "data.context": 14, "data.patch": 7, "data.horizon": 7}
    run = weft.train("forecast", tmp_path / "w.csv", tmp_path / "wave", steps=1, set=small)
    assert any(
        row[0] == "windows in both parts" and row[2].endswith("(100.0%)")
        for row in panels_of(run.folder)["Data"]["rows"]
    )
    metrics = {row[0]: row for row in panels_of(run.folder)["Metrics"]["rows"]}
    assert metrics["coverage"][1].endswith("(0.8 promised)")


@pytest.mark.parametrize(
    ("task", "data", "more"),
    [
        ("translation", "sample:dates", {"layers": 1}),
        ("tagging", "sample:", {"layers": 2}),
        ("sequences", "sample:tones", {"layers": 2}),
        ("captions", "sample:", {"layers": 1}),
        ("transcription", "sample:", {"layers": 1}),
        ("classification", "sample:nodes", {"layers": 2}),
    ],
)
def test_every_task_has_a_report(tmp_path, task, data, more):
    request = TrainRequest(task, (data,), tmp_path / "run", changes={**SMALL, **more}, steps=1)
    notes = Notes()
    result = run_training(request, notes)
    report_training(request, result, notes)
    assert not [note for note in notes.notes if "report" in note], notes.notes
    found = panels_of(tmp_path / "run")
    assert {"Plan and what happened", "Metrics", "Data"} <= set(found)
    wrong = worst_examples(result.scores)
    assert bool(wrong) == ("Worst errors" in found)
    assert wrong or task == "tagging"  # of which n-grams know everything
    assert result.scores is not None and result.data.held_out.examples > 0


def test_a_module_of_ones_own_has_a_report(tmp_path):
    (tmp_path / "a.txt").write_text("so many words, all of them known to the one who reads them. " * 30)
    run = weft.train("text", tmp_path / "a.txt", tmp_path / "run", steps=1, module=TinyGPT, set={"training.threads": 1})
    command = panels_of(run.folder)["The command that trains the same again"]["rows"][0][1]
    assert "--module FILE.py:NAME" in command


def test_a_report_that_fails_is_a_note(tmp_path, monkeypatch):
    def fail(*_):
        raise RuntimeError("no room\nfor it")

    monkeypatch.setattr(report_module, "plan_panels", fail)
    notes = Notes()
    run = train_moods(tmp_path, notes)
    assert not (run.folder / REPORT).exists() and run.predict("good thing") in ("pos", "neg")
    assert "no report was written (RuntimeError: no room); the run itself is complete" in notes.notes


def test_a_page_that_would_be_too_large_leaves_attention_out(tmp_path, monkeypatch):
    request = TrainRequest("text", ("sample:markov",), tmp_path / "run", changes=SMALL, steps=1)
    result = run_training(request, Reporter())
    write_report(request, result)
    whole = len(panels_of(tmp_path / "run"))
    monkeypatch.setattr(report_module, "LARGEST", 90_000)
    write_report(request, result)
    assert len(panels_of(tmp_path / "run")) < whole
    assert any("too large for this page" in sentence for sentence in page_data(tmp_path / "run")["left_out"])


def test_the_worst_errors_are_the_surest_mistakes():
    answers = ["a", "b", "b", "a"]
    quality, sure = np.array([1.0, 0.0, 0.0, 0.0]), np.array([0.9, 0.6, 0.8, 0.7])
    scores = ExampleScores({}, {}, ["a", "a", "a", "b"], answers, quality, lambda n: f"text {n}", sure)
    panel = worst_panel(scores)
    assert [row[0] for row in panel.rows] == ["text 2", "text 3", "text 1"]
    assert panel.rows[0] == ("text 2", "a", "b", "0.800")
    right = ExampleScores({}, {}, ["a"], ["a"], np.ones(1), str)
    assert worst_panel(right) is None
    table = confusion_panel(scores, ("a", "b"))
    np.testing.assert_array_equal(table.values, [[1, 2], [1, 0]])


def test_worst_pictures():
    pixels = np.random.default_rng(0).integers(0, 255, (3, 7, 5, 1), dtype=np.uint8)
    given = (["a", "a", "b"], ["b", "a", "a"], np.array([0.0, 1.0, 0.0]), str, np.array([0.6, 0.9, 0.7]))
    panel = worst_pictures_panel(ExampleScores({}, {}, *given, picture=pixels.__getitem__))
    assert panel.names == ("b, not a", "a, not b") and panel.values.shape == (2, 7, 5, 3)
    np.testing.assert_allclose(panel.values[0][..., 1], pixels[2, ..., 0] / 255, rtol=1e-6)
    assert worst_pictures_panel(ExampleScores({}, {}, *given)) is None


def test_the_command_has_every_option(tmp_path):
    changes = {"layers": 2, "training.lora": 8, "data.columns": ("a", "b"), "training.guard": False}
    request = TrainRequest(
        "text", ("my book.txt",), tmp_path / "r", "auto", changes, minutes=2.5, seed=3, base="runs/b"
    )
    words = reproducing_command(request)
    for part in (
        "'my book.txt'",
        "--from runs/b",
        "--lora 8",
        "--minutes 2.5",
        "--seed 3",
        "--set layers=2",
        "--set data.columns=a,b",
        "--set training.guard=false",
    ):
        assert part in words, part  # fmt: skip
    plan = SimpleNamespace(last=7, batch=512, head=None)
    assert planned_options(plan, {"width": 64, "layers": 3}) == (
        "--steps 7 --set width=64 --set layers=3 --set training.batch=512"
    )


def test_statistics_of_lengths_and_classes(tmp_path):
    class Labeled(Rows):
        def example_lengths(self):
            return "words", [len(row) for row in self.rows]

        def class_numbers(self):
            return np.array([len(row) % 2 for row in self.rows])

    found = data_statistics(Labeled("a", "bb", "ccc", "ddddd"), Labeled("x", "yy"), ("even", "odd"))
    assert (found.train.lengths.least, found.train.lengths.median, found.train.lengths.most) == (1, 2.5, 5)
    assert sum(found.train.lengths.counts) == 4 and sum(found.held_out.lengths.counts) == 2
    assert found.train.classes == {"odd": 3, "even": 1}


def test_records_must_be_even():
    from weft.figures.panels.records import RecordsPanel

    with pytest.raises(WeftError, match="one cell per column"):
        RecordsPanel("x", ("a", "b"), (("1",),))


@cache
def find() -> str | None:
    return find_browser()


@pytest.mark.skipif(find() is None, reason="there is no Chromium")
def test_the_page_is_alive_and_unhurt(tmp_path):
    run = train_moods(tmp_path)
    browser = Browser(find(), tmp_path / "browser")
    try:
        for width in (1240, 400):
            browser.resize(width, 900)
            browser.open(run.folder / REPORT)
            assert not browser.errors and browser.run("window.hurt") is None
            assert browser.run("document.querySelectorAll('section').length") == len(panels_of(run.folder))
            assert browser.run("document.querySelectorAll('.records tr.marked').length") >= 1
            assert browser.run("document.documentElement.scrollWidth") <= width
    finally:
        browser.close()
