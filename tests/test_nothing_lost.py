"""No command writes over files of the user's, and a resumed run goes on with its own data only."""

from __future__ import annotations

import json
import os

import pytest
from PIL import Image

import weft
from weft.checkpoints.run_folder import RunFolder
from weft.cli.commands import demo
from weft.cli.main import app
from weft.data.fingerprints import expect_unchanged, take_fingerprints
from weft.data.readers.files import DataError
from weft.foundation.errors import WeftError
from weft.foundation.files.atomic_files import DiskError, expect_other_file, write_text

TINY = {"width": 16, "layers": 1, "mixer.heads": 2, "length": 32, "training.batch": 256, "training.threads": 1}
TEXT = "she sells sea shells by the sea shore; the shells she sells are sea shells.\n" * 40


@pytest.fixture
def book(tmp_path, monkeypatch):
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path / "cache"))
    file = tmp_path / "book.txt"
    file.write_text(TEXT)
    return file


def train(data, out, **more):
    return weft.train("text", data, out=out, **{"steps": 4, "set": TINY, "device": "cpu", **more})


def contents(folder):
    return {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()}


@pytest.mark.parametrize("names", [("model.safetensors", "config.json", "tokenizer.json"), ("tokenizer.json",), ("a",)])
def test_a_folder_of_other_files_is_no_place_for_a_run(book, tmp_path, names):
    out = tmp_path / "theirs"
    out.mkdir()
    for name in names:
        (out / name).write_text(f"precious {name}")
    before = contents(out)
    with pytest.raises(WeftError, match=r"holds no run, but other files.*choose a new or empty folder"):
        train(book, out)
    with pytest.raises(WeftError, match="holds no run"):
        train(book, out, resume=True)
    assert contents(out) == before


def test_empty_folders_and_hidden_files_are_fine(book, tmp_path):
    out = tmp_path / "mine"
    out.mkdir()
    (out / ".gitkeep").touch()
    assert train(book, out).folder == out


def test_what_a_kill_before_the_spec_leaves_is_taken_up(book, tmp_path):
    out = tmp_path / "killed"
    train(book, out)
    for name in ("spec.json", "model.safetensors", "metrics.jsonl", "references.json", "report.html"):
        (out / name).unlink()
    for file in (out / "training").iterdir():
        file.unlink()
    (out / "training").rmdir()
    assert (out / ".lock").exists() and (out / "plan.json").exists()
    assert train(book, out).folder == out


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda file: file.write_text(TEXT + "zebra\n"), "book.txt has changed since the run"),
        (lambda file: file.write_text(TEXT.replace("shore", "store")), "book.txt has changed"),
        (lambda file: file.unlink(), "book.txt is gone"),
    ],
)
def test_resuming_with_other_data_is_refused_by_name(book, tmp_path, change, sentence):
    out = tmp_path / "run"
    train(book, out)
    before = contents(out)
    change(book)
    with pytest.raises(DataError, match=sentence):
        train(book, out, resume=True)
    assert contents(out) == before


def test_a_file_that_was_only_touched_is_the_same(book, tmp_path):
    out = tmp_path / "run"
    train(book, out)
    os.utime(book, ns=(1, 1))
    train(book, out, resume=True)


def test_validation_files_and_folders_count_too(book, tmp_path):
    folder = tmp_path / "texts"
    folder.mkdir()
    (folder / "one.txt").write_text(TEXT)
    held_out = tmp_path / "held.txt"
    held_out.write_text(TEXT[:400])
    out = tmp_path / "run"
    options = {"set": {**TINY, "data.validation": str(held_out)}}
    train(folder, out, **options)
    rows = json.loads((out / "data.json").read_text())["files"]
    assert [row["path"] for row in rows] == [str(folder / "one.txt"), str(held_out)]
    (folder / ".DS_Store").write_text("written by a file manager")
    train(folder, out, resume=True, **options)
    (folder / "two.txt").write_text(TEXT)
    with pytest.raises(DataError, match=r"two.txt is new"):
        train(folder, out, resume=True, **options)
    (folder / "two.txt").unlink()
    held_out.write_text(TEXT[:300])
    with pytest.raises(DataError, match=r"held.txt has changed"):
        train(folder, out, resume=True, **options)


def test_another_tokenizer_than_the_run_has_is_refused(book, tmp_path):
    """As a run of an older version, which has no fingerprints."""
    out = tmp_path / "run"
    train(book, out)
    (out / "data.json").unlink()
    book.write_text(TEXT + "zebra\n")
    before = contents(out)
    with pytest.raises(WeftError, match="gives another tokenizer now"):
        train(book, out, resume=True)
    assert contents(out) == before


def test_fingerprints_name_what_differs(tmp_path):
    first, second = tmp_path / "é.txt", tmp_path / "b.txt"
    first.write_text("one"), second.write_text("two")
    known = take_fingerprints([str(first), str(second), "sample:dates"])
    assert [one.size for one in known] == [3, 3]
    expect_unchanged(known, [str(first), str(second)], tmp_path)
    with pytest.raises(DataError, match=r"b.txt is gone"):
        expect_unchanged(known, [str(first)], tmp_path)
    folder = RunFolder(tmp_path)
    folder.write_fingerprints(known)
    assert folder.read_fingerprints() == known
    (tmp_path / "data.json").write_text('{"files": [1]}')
    with pytest.raises(WeftError, match="not a list of data files"):
        folder.read_fingerprints()


def test_a_demo_replaces_only_demos(tmp_path, book):
    mine = tmp_path / "runs" / "text"
    train(book, mine)
    before = contents(mine)
    with pytest.raises(WeftError, match="not of a demo: choose another --out"):
        demo._make_room(RunFolder(mine))
    assert contents(mine) == before

    own = RunFolder(tmp_path / "demo" / "text")
    demo._make_room(own)
    train(book, own.path)
    demo._make_room(own)
    assert {entry.name for entry in own.path.iterdir()} == {".lock", demo.MARK}
    train(book, own.path)
    with own.hold(), pytest.raises(DiskError, match="is being written by process"):
        demo._make_room(own)
    assert own.exists


def test_a_demo_leaves_other_files_alone(tmp_path):
    folder = tmp_path / "text"
    folder.mkdir()
    (folder / "notes.md").write_text("mine")
    with pytest.raises(WeftError, match="holds no run"):
        demo._make_room(RunFolder(folder))
    assert (folder / "notes.md").read_text() == "mine"


def test_look_does_not_replace_its_input(tmp_path, capsys):
    picture = tmp_path / "seven.png"
    Image.new("L", (5, 5)).save(picture)
    before = picture.read_bytes()
    link = tmp_path / "link.png"
    link.symlink_to(picture)
    for out in (picture, link):
        with pytest.raises(SystemExit) as stopped:
            app(["look", str(tmp_path), str(picture), "--out", str(out)], prog_name="weft")
        assert stopped.value.code == 2
        assert "is the input, and would be overwritten" in capsys.readouterr().err
    assert picture.read_bytes() == before


def test_texts_are_no_paths(tmp_path):
    expect_other_file(tmp_path / "look.html", ["Once upon a time", "x" * 5000, "a\0b"])


def test_a_page_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    page = tmp_path / "look.html"
    page.write_text("old")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DiskError, match="the disk is full"):
        write_text(page, "new")
    assert page.read_text() == "old"
    assert list(tmp_path.iterdir()) == [page]


def test_links_are_followed(tmp_path):
    target, link = tmp_path / "target.txt", tmp_path / "link.txt"
    target.write_text("old")
    link.symlink_to(target)
    write_text(link, "new")
    assert link.is_symlink() and target.read_text() == "new"


def test_a_trained_model_ships_with_the_package(tmp_path, capsys, monkeypatch):
    """`sample:dates-run` is read like any run, and nothing is written into the package."""
    from weft.checkpoints.sample_runs import HOME, locate_run, sample_runs

    monkeypatch.chdir(tmp_path)
    folder = locate_run("sample:dates-run")
    assert sample_runs() == ["sample:dates-run"] and folder.parent == HOME
    assert sum(file.stat().st_size for file in folder.iterdir()) < 1_000_000
    before = sorted(HOME.rglob("*"))
    run = weft.load("sample:dates-run")
    assert "<td>sample:dates-run</td>" in run._repr_html_() and str(HOME) not in run._repr_html_()
    assert run.predict("the 3rd of May 1987") == "1987-05-03"
    for words, said in (
        (["look", "sample:dates-run", "12 March 2024", "--out", "x.html"], "2024-03-12"),
        (["show", "sample:dates-run"], "169,792"),
        (["tokens", "sample:dates-run", "May"], "M"),
        (["laws", "sample:dates-run"], "0 broken"),
    ):
        with pytest.raises(SystemExit) as stopped:
            app(words, prog_name="weft")
        told = capsys.readouterr()
        assert not stopped.value.code and said in told.out, told
    with pytest.raises(WeftError, match=r"there is no run sample:dates: .*sample:dates-run"):
        weft.load("sample:dates")
    with pytest.raises(WeftError, match="read only"):
        train("sample:markov", "sample:dates-run")
    assert [path for path in sorted(HOME.rglob("*")) if "__pycache__" not in path.parts] == [
        path for path in before if "__pycache__" not in path.parts
    ]
    command = (folder / "command.txt").read_text().split()
    assert command[:4] == ["weft", "train", "translation", "sample:dates"]


def test_the_path_of_a_missing_file_is_no_text_in_silence(capsys):
    for given, noted in (("nope.csv", True), ("3 May 1987", False)):
        with pytest.raises(SystemExit):
            app(["predict", "sample:dates-run", given], prog_name="weft")
        assert ("there is no file nope.csv: it was read as the text itself" in capsys.readouterr().err) == noted
