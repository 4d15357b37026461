"""The command `weft laws`: presets, files and packages with a factory, what it lists, its exit codes and errors."""

from __future__ import annotations

import json
import sys

import pytest

from weft.cli.main import app

CODE = """
import torch
from torch import nn

class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.mix, self.head = nn.Embedding(23, 8), nn.Linear(8, 8), nn.Linear(8, 23)
    def forward(self, tokens):
        x = self.embedding(tokens)
        return self.head(x + self.mix(x.mean(1, keepdim=True)))

class Positioned(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.places, self.head = nn.Embedding(23, 8), nn.Embedding(32, 8), nn.Linear(8, 23)
    def forward(self, tokens, attention_mask=None, positions=None):
        positions = torch.arange(tokens.shape[1]).expand_as(tokens) if positions is None else positions
        return self.head(self.embedding(tokens) + self.places(positions))

broken, untested = Decoder(), nn.Linear(3, 3)
number = 3

def fails():
    raise ValueError("no luck")
"""


@pytest.fixture
def laws(capsys, monkeypatch, tmp_path):
    """`laws("gpt2", ...)` gives (exit code, stdout, stderr); `mine.py` and `tools/own.py` lie in the current folder."""
    for name in ("mine.py", "tools/own.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(CODE)
    (tmp_path / "bad.py").write_text("def (")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.delenv("WEFT_DEBUG", raising=False)

    def call(*words):
        with pytest.raises(SystemExit) as stopped:
            app(["laws", *words], prog_name="weft")
        return stopped.value.code or 0, *capsys.readouterr()

    yield call
    for name in ("mine", "own", "tools", "tools.own"):
        sys.modules.pop(name, None)


PLACES = ["mine.py:broken", "mine:broken", "tools/own.py:Decoder", "tools.own:Decoder"]


@pytest.mark.parametrize("place", PLACES)
def test_a_file_or_a_package_with_a_factory(laws, place, tmp_path):
    code, out, _ = laws(place, "--json", "--html", "a.html")
    tree = json.loads(out)
    causality = next(row for row in tree["laws"] if row["law"] == "causality")
    assert code == 1 and causality["verdict"] == "broken" and tree["broken"] >= 1 and tree["cautions"] == 0
    assert "named a decoder" in tree["assumed"][0] and (tmp_path / "a.html").exists()
    assert tree["precision"] == "float64"


def test_what_is_broken_comes_first_and_the_rest_is_counted(laws):
    code, listed, _ = laws("mine.py:broken")
    assert code == 1 and "causality" in listed and "finite outputs" not in listed
    assert listed.index("broken") < listed.index("4 hold, 2 broken, ") and "judged in float64" in listed
    assert len(listed[listed.index("4 hold") :].strip().splitlines()) == 1 and "--all lists them" in listed
    _, everything, _ = laws("mine.py:broken", "--all")
    assert everything.index("all lengths") < everything.index("finite outputs") < everything.index("graph reach")
    assert "--all" not in everything


def test_cautions_are_listed_and_are_no_failure(laws):
    code, out, _ = laws("mine.py:Positioned")
    assert code == 0 and "left padding" in out and "caution" in out and "pass positions" in " ".join(out.split())
    assert "0 broken, 1 caution, " in out
    tree = json.loads(laws("mine.py:Positioned", "--json")[1])
    assert {row["verdict"] for row in tree["laws"]} == {"holds", "caution", "not declared", "not testable"}


def test_presets_and_what_cannot_be_tested(laws):
    code, out, _ = laws("mixtral-8x7b")
    assert code == 0 and "checked at a smaller size" in out and ", 0 broken, " in out and "causality" not in out
    code, out, _ = laws("mine:untested")
    assert code == 1 and "nothing could be tested" in " ".join(out.split())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "give one model"),
        (("gpt2", "--module", "mine:broken"), "so --module names another model: give one of them"),
        (("nonsense",), "there is no preset 'nonsense'"),
        (("mine.py:broken", "--html", "mine.py"), "mine.py is the input, and would be overwritten"),
        (("mine.py",), "'mine.py' names no factory: write mine.py:factory"),
        (("mine.py:",), "'mine.py:' names no factory"),
        (("nowhere.py:x",), "there is no file nowhere.py"),
        (("nowhere:x",), "there is no module 'nowhere'"),
        (("mine.py:nothing",), "has no 'nothing': choose one of Decoder, Positioned, broken, untested, fails"),
        (("mine.py:number",), "is of type int: name a module or a function"),
        (("bad.py:x",), "importing 'bad.py' fails with SyntaxError"),
        (("mine.py:fails",), "ValueError: no luck"),
        (("--module", "mine"), "names no factory"),
        (("mine:broken", "--example", "a,b"), "token ids"),
    ],
)
def test_mistakes_are_told_in_one_sentence(laws, words, said):
    code, _, error = laws(*words)
    assert code == 2 and said in error and error.count("\n") == 1
