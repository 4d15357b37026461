"""Paths that are no files: pipes, devices, folders, links that go round. One sentence, at once."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

import pytest
from typer.testing import CliRunner

from file_readers import READERS
from weft.cli.main import app
from weft.data.tokenizers.tokenizer import load_tokenizer
from weft.foundation.errors import WeftError
from weft.foundation.files.atomic_files import write_text

TESTS_OWN = ("chat template", "spec", "idx")  # the tests themselves read these files


def make(kind: str, path: Path) -> None:
    """Put something odd at a path."""
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind != "nothing":
        path.symlink_to({"endless device": "/dev/zero", "empty device": "/dev/null", "loop": path}[kind])


LENIENT = ("metrics", "fingerprints", "race", "training state")  # runs without them are runs
KINDS = ("pipe", "endless device", "empty device", "folder", "loop", "nothing")


@pytest.fixture
def in_time():
    """What waits for ever ends."""

    def stop(*_):
        raise AssertionError("it waits for ever")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(20)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("reader", [one for one in READERS if one.name not in TESTS_OWN], ids=lambda one: one.name)
def test_readers(reader, kind, tmp_path, in_time):
    if reader.name == "metrics" and "device" in kind:
        pytest.skip("it writes what it has read")
    path = tmp_path / reader.file
    make(kind, path)
    if reader.name in LENIENT:
        with contextlib.suppress(WeftError, OSError):
            reader.read(path)
        return
    with pytest.raises((WeftError, OSError)) as caught:  # the command tells an OSError in a sentence too
        reader.read(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", KINDS)
def test_commands(kind, tmp_path, in_time, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("a.txt", "a.toml", "a.json", "a.gguf", "model.safetensors"):
        make(kind, Path(name))
    Path("run").mkdir()
    make(kind, Path("run/spec.json"))
    for words in (
        ["train", "text", "a.txt", "--steps=2", "--out=o"],
        ["train", "text", "sample:markov", "--config=a.toml", "--steps=2", "--out=o"],
        ["train", "text", "sample:markov", "--set=data.tokenizer=a.json", "--steps=2", "--out=o"],
        ["show", "a.json"],
        ["show", "a.toml"],
        ["show", "run"],
        ["tokens", "a.json", "abc"],
        ["tokens", "bytes", "--file", "a.txt"],
        ["import", "a.gguf", "--out=o"],
        ["import", ".", "--out=o"],
        ["predict", "run", "abc"],
        ["export", "run", "--to", "gguf", "--out=o"],
    ):
        done = CliRunner().invoke(app, words)
        assert done.exit_code == 2, (words, done.output, done.exception)
        told = [line for line in done.stderr.splitlines() if not line.startswith(("note: ", "reading "))]
        assert len(told) == 1 and told[0].startswith("weft: ") and len(told[0]) < 600, (words, told)


def test_a_tokenizer_is_the_file_that_was_named(tmp_path):
    """A pipe beside a tokenizer does not stand for it."""
    (tmp_path / "tokenizer.json").write_bytes(next(one for one in READERS if one.name == "tokenizer").seeds()[0])
    os.mkfifo(tmp_path / "other.json")
    load_tokenizer(tmp_path)
    with pytest.raises(WeftError, match=r"other\.json is a pipe or a device"):
        load_tokenizer(tmp_path / "other.json")


def test_what_is_no_file_is_not_replaced(tmp_path):
    """By a link to a device, root would put a file in the place of /dev/null."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")
    for name in ("pipe", "link"):
        with pytest.raises(WeftError, match="is a pipe or a device"):
            write_text(tmp_path / name, "x")
    assert (tmp_path / "pipe").is_fifo() and sorted(file.name for file in tmp_path.iterdir()) == ["link", "pipe"]
