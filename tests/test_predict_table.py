"""`weft predict RUN table.csv --out answers.csv`, paths that are no texts, and `weft look RUN FILE#N`."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from weft.cli.main import app
from weft.foundation.errors import WeftError
from weft.inspection.pictures.inputs import file_and_number
from weft.reports.train import train
from weft.runs import batch_prediction
from weft.runs.answer_table import answer_rows
from weft.runs.batch_prediction import predict_to_file
from weft.runs.run import load
from weft.tasks.support.inputs.input_rows import TableOptions
from weft.tasks.task import Answer

ROWS = [(f"the {noun} number {n} was {word}", label) for n, (noun, word, label) in enumerate(
    [("film", "good", "up"), ("plot", "bad", "down"), ("cast", "fine", "up"), ("end", "dull", "down")] * 5
)]  # fmt: skip


def write(path: Path, rows, header=("day", "review", "mood")) -> Path:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([header, *rows])
    return path


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    data = write(folder / "train.csv", ROWS, ("review", "mood"))
    train("classification", data, out=folder / "reviews", steps=2, set={"data.vocabulary": 97})
    return folder / "reviews"


@pytest.fixture
def table(tmp_path):
    rows = [(f"2024-01-{n + 1:02}", text, label) for n, (text, label) in enumerate(ROWS)]
    return write(tmp_path / "new.csv", rows)


def weft(*arguments, status=0, given=None):
    result = CliRunner().invoke(app, [str(one) for one in arguments], input=given)
    assert result.exit_code == status, result.output
    return result


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_a_table_in_and_a_table_out(run, table, tmp_path):
    said = weft("predict", run, table, "--out", tmp_path / "answers.csv")
    assert "new.csv: the run reads column review" in said.output and "20 of 20" in said.output
    answers = rows_of(tmp_path / "answers.csv")
    assert list(answers[0]) == ["day", "review", "mood", "prediction", "probability_down", "probability_up"]
    expected = load(run).answer([text for text, _ in ROWS])
    assert [row["review"] for row in answers] == [text for text, _ in ROWS]
    assert [row["prediction"] for row in answers] == [answer.output for answer in expected]
    assert [float(row["probability_up"]) for row in answers] == [one.more["probabilities"]["up"] for one in expected]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["answers.csv", "new.csv"]  # nothing is left beside it
    weft("predict", run, table, "--out", tmp_path / "answers.jsonl", "--json")
    first = json.loads((tmp_path / "answers.jsonl").read_text().splitlines()[0])
    assert first["day"] == "2024-01-01" and first["probabilities"] == expected[0].more["probabilities"]
    weft("predict", run, table, "--out", tmp_path / "answers.tsv")
    assert (tmp_path / "answers.tsv").read_text().splitlines()[1].split("\t")[3] == expected[0].output


def test_a_killed_prediction_continues(run, table, tmp_path, monkeypatch):
    monkeypatch.setattr(batch_prediction, "BATCH_ROWS", 7)
    opened, out = load(run), tmp_path / "answers.csv"
    rows = opened.task.open_rows(table, TableOptions())
    whole = predict_to_file(opened, rows, tmp_path / "whole.csv", {}).path.read_bytes()

    class Killed(BaseException):
        pass

    def kill(share, words):
        if share > 0.5:
            raise Killed

    with pytest.raises(Killed):
        predict_to_file(opened, rows, out, {}, kill)
    assert not out.exists()
    partial = tmp_path / "answers.csv.partial"
    with partial.open("ab") as file:
        file.write(b"half a ro")  # what was written after the last state
    asked = []
    monkeypatch.setattr(
        type(opened), "answer", lambda self, inputs, **how: asked.extend(inputs) or _answer(self, inputs)
    )
    written = predict_to_file(opened, rows, out, {})
    assert (written.resumed, written.inputs, len(asked)) == (14, 20, 6)
    assert out.read_bytes() == whole and not partial.exists()
    # Another table, or other options: from the start.
    for change in (lambda: write(table, [("Monday", *ROWS[0])] * 20), lambda: None):
        with pytest.raises(Killed):
            predict_to_file(opened, rows, out, {}, kill)
        change()
        fresh = opened.task.open_rows(table, TableOptions())
        assert predict_to_file(opened, fresh, out, {"seed": 5}).resumed == 0


def _answer(run, inputs):
    from weft.tasks.task import GenerationOptions

    return run.task.predict(run.module, list(inputs), GenerationOptions())


def test_which_column_is_read(run, tmp_path):
    other = write(tmp_path / "other.csv", [("1", "good one", "x"), ("2", "bad one", "y")], ("id", "comment", "mark"))
    out = tmp_path / "a.csv"
    said = weft("predict", run, other, "--out", out, status=2)
    assert "other.csv has 3 columns (id, comment, mark), but the run reads one: choose, such as --set data.columns=comment" in " ".join(said.output.split())  # fmt: skip # noqa: E501
    weft("predict", run, other, "--out", out, "--set", "data.columns=comment")
    assert len(rows_of(out)) == 2
    bare = write(tmp_path / "bare.csv", [("good one",), ("bad one",)], ("fine one",))
    assert len(weft("predict", run, bare).stdout.splitlines()) == 3
    assert len(weft("predict", run, bare, "--set", "data.header=yes").stdout.splitlines()) == 2
    said = weft("predict", run, bare, "--set", "training.rate=1", status=2)
    assert "--set training.rate: predict sets how a table is read alone" in said.output
    taken = write(tmp_path / "taken.csv", [("good", "1"), ("bad", "2")], ("review", "prediction"))
    weft("predict", run, taken, "--out", out)
    assert list(rows_of(out)[0])[:3] == ["review", "prediction", "prediction_of_run"]


def test_no_input_is_overwritten_and_bad_outputs_are_refused(run, table, tmp_path):
    before = table.read_bytes()
    assert "is the input, and would be overwritten" in weft("predict", run, table, "--out", table, status=2).output
    (tmp_path / "link.csv").symlink_to(table)
    assert "is the input" in weft("predict", run, table, "--out", tmp_path / "link.csv", status=2).output
    assert table.read_bytes() == before
    assert "ends in .csv or .tsv or .jsonl" in weft("predict", run, table, "--out", tmp_path / "a.txt", status=2).output
    missing = weft("predict", run, table, "--out", tmp_path / "no" / "a.csv", status=2)
    assert "cannot write" in missing.output
    both = weft("predict", run, table, "a text", "--out", tmp_path / "a.csv", status=2)
    assert "give one table at a time" in both.output
    empty = write(tmp_path / "empty.csv", [], ("review", "mood"))
    assert "no row to answer" in weft("predict", run, empty, "--out", tmp_path / "a.csv", status=2).output


def test_a_path_is_never_a_text_in_silence(run, table, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert len(weft("predict", run, "new.csv").stdout.splitlines()) == 20
    Path("note.txt").write_text("good\nand fine\n")
    said = weft("predict", run, "note.txt", "--json")
    assert json.loads(said.stdout)[0]["input"] == "good\nand fine"
    assert "note.txt is a file: it was read as one text" in said.stderr
    weft("predict", run, "note.txt", "--out", "lines.csv")
    assert [row["text"] for row in rows_of(Path("lines.csv"))] == ["good", "and fine"]
    Path("good").mkdir()
    assert "there is a folder named good, but 'good' itself" in weft("predict", run, "good").stderr
    Path("photo.png").write_bytes(b"\x89PNG")
    assert "photo.png is a file, but a run of task classification reads texts" in weft("predict", run, "photo.png", status=2).output  # fmt: skip # noqa: E501
    weft("predict", run, "good film", "bad film", "--out", "two.csv")
    assert [row["input"] for row in rows_of(Path("two.csv"))] == ["good film", "bad film"]
    weft("predict", run, "--out", "lines.csv", given="good\nbad\nfine\n")
    assert len(rows_of(Path("lines.csv"))) == 3


def test_look_at_a_row_of_a_table(run, table, tmp_path):
    said = weft("look", run, f"{table}#17", "--out", tmp_path / "a.svg", "--json")
    assert json.loads(said.stdout)["input"].startswith(ROWS[17][0])
    assert "has 20 rows, from 0 to 19, but no row 20" in weft("look", run, f"{table}#20", status=2).output
    assert "new.csv has 20 rows: look at one of them, such as" in " ".join(weft("look", run, table, status=2).output.split())  # fmt: skip # noqa: E501
    over = weft("look", run, f"{table}#3", "--out", table, status=2)
    assert "is the input" in over.output
    assert file_and_number("no such file#3") is None and file_and_number("a#b") is None


def test_examples_of_images_and_sequences(tmp_path):
    pixels, classes = np.arange(4 * 35, dtype=np.uint8).reshape(4, 7, 5), np.array([1, 0, 1, 0])
    np.savez(
        tmp_path / "images.npz", images=np.stack([np.pad(one, ((0, 0), (0, 2))) for one in pixels]), labels=classes
    )
    from weft.tasks.images import ImagesOptions, ImagesTask
    from weft.tasks.sequences import SequencesOptions, SequencesTask

    images = ImagesTask.prepare([str(tmp_path / "images.npz")], ImagesOptions(), 0, tmp_path).task
    found = images.open_example(tmp_path / "images.npz", 2, tmp_path)
    assert (found.name, found.truth) == ("images.npz 2", "1") and Path(found.value).name == "2.png"
    with pytest.raises(WeftError, match=r"images.npz has 4 images, from 0 to 3, but no image 4"):
        images.open_example(tmp_path / "images.npz", 4, tmp_path)
    names = write(tmp_path / "names.csv", [("2.png", "1"), ("2.png", "0")], ("file", "label"))
    assert images.open_rows(names, TableOptions()).row(1)[1] == str(tmp_path / "2.png")
    x = np.arange(4 * 6 * 2, dtype=np.float32).reshape(4, 6, 2)
    np.savez(tmp_path / "s.npz", x=x, y=np.array(["a", "b", "a", "b"]), lengths=np.array([3, 6, 5, 6]))
    sequences = SequencesTask.prepare([str(tmp_path / "s.npz")], SequencesOptions(), 0, tmp_path).task
    found = sequences.open_example(tmp_path / "s.npz", 2, tmp_path)
    with np.load(found.value) as arrays:
        assert np.array_equal(arrays["x"][0], x[2, :5]) and found.truth == "a"
    with pytest.raises(WeftError, match="no sequence 4"):
        sequences.open_example(tmp_path / "s.npz", 4, tmp_path)


def test_a_forecast_has_a_row_per_step():
    answer = Answer("a.csv", {"x": [1.0, 2.0]}, {"low": {"x": [0.5, 1.5]}, "high": {"x": [1.5, 2.5]}})
    assert answer_rows(answer)[1] == {"step": 2, "x": 2.0, "x_low": 1.5, "x_high": 2.5}
    assert answer_rows(Answer("a b", ["X", "Y"], {"tokens": ["a", "b"], "probabilities": [0.5, 1.0]})) == [
        {"prediction": ["X", "Y"], "tokens": ["a", "b"], "probabilities": [0.5, 1.0]}
    ]
