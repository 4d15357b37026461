"""The commands that train and use runs, as a user types them."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
import time

import pytest

import weft
from weft.checkpoints.run_folder import RunFolder
from weft.cli import demo
from weft.cli.main import app
from weft.cli.settings import list_defaults, read_changes
from weft.foundation.errors import WeftError
from weft.tasks.names import TASKS

TINY = ("width=16", "layers=1", "mixer.heads=2", "length=32", "training.batch=256", "training.threads=1")
TEXT = "she sells sea shells by the sea shore; the shells she sells are sea shells.\n" * 40


@pytest.fixture
def run(capsys, monkeypatch, tmp_path):
    """`run("train", ...)` gives (exit code, stdout, stderr)."""
    monkeypatch.delenv("WEFT_DEBUG", raising=False)
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path / "cache"))

    def call(*words):
        with pytest.raises(SystemExit) as stopped:
            app([str(word) for word in words], prog_name="weft")
        return stopped.value.code or 0, *capsys.readouterr()

    return call


@pytest.fixture
def book(tmp_path):
    (tmp_path / "book.txt").write_text(TEXT)
    return tmp_path / "book.txt"


def settings(*more):
    return [word for setting in (*TINY, *more) for word in ("--set", setting)]


def test_from_a_file_to_a_continuation(run, book, tmp_path, monkeypatch):
    out = tmp_path / "runs" / "book"
    code, words, err = run("train", "text", book, "--out", out, "--steps", 30, *settings(), "--json")
    assert code == 0, err
    found = json.loads(words)
    assert {"run", "steps", "seconds", "loss", "metrics"} <= found.keys()
    assert (found["run"], found["steps"], found["leak"]) == (str(out), 30, None)
    assert found["loss"] == found["metrics"]["loss"] < 3.2
    assert "plan: " in err and "held-out loss" in err and "tokens/s" in err
    written = {path.name for path in out.iterdir()}
    assert written >= {"spec.json", "model.safetensors", "tokenizer.json", "metrics.jsonl", "plan.json", "curves.png"}
    assert (out / "curves.png").read_bytes().startswith(b"\x89PNG")

    code, words, _ = run("eval", out, book, "--json")
    assert code == 0 and {"loss", "perplexity", "bits_per_byte"} <= json.loads(words).keys()
    code, words, _ = run("eval", out, book)
    assert code == 0 and "perplexity" in words

    code, words, _ = run("predict", out, "she ", "the ", "--max-tokens", 5, "--seed", 3, "--json")
    answers = json.loads(words)
    assert code == 0 and [answer["input"] for answer in answers] == ["she ", "the "]
    assert all(len(answer["output"]) == len(answer["tokens"]) == 5 for answer in answers)
    assert abs(sum(answers[0]["probabilities"].values()) - 1) < 0.5
    assert weft.load(out).predict("she ", max_tokens=5, seed=3) == answers[0]["output"]

    monkeypatch.setattr(sys, "stdin", io.StringIO("she \n\nthe \n"))
    code, piped, _ = run("predict", out, "--max-tokens", 5, "--seed", 3, "--json")
    assert code == 0 and json.loads(piped) == answers

    code, words, _ = run("show", out, "--json")
    assert code == 0 and json.loads(words)["parameters"] == found["parameters"]
    code, words, _ = run("laws", out, "--json")
    assert code == 0 and json.loads(words)["broken"] == 0


def test_the_result_in_words_names_the_best_possible_and_what_next(run, tmp_path):
    out = tmp_path / "run"
    code, words, _ = run("train", "text", "sample:markov", "--out", out, "--steps", 3, *settings())
    assert code == 0
    assert "best possible" in words and "weft predict" in words and "3 steps" in words


def test_a_score_better_than_possible_is_called_a_leak(run, tmp_path, monkeypatch):
    from weft.tasks.text import TextTask

    real = TextTask.measure
    monkeypatch.setattr(TextTask, "measure", lambda *given: real(*given) | {"loss": 0.01})
    code, words, _ = run("train", "text", "sample:markov", "--out", tmp_path / "run", "--steps", 2, *settings())
    assert code == 0 and "LEAK: loss 0.01 is better than the best possible" in words


def test_a_config_file_says_it_all_and_set_wins(run, book, tmp_path):
    config = tmp_path / "run.toml"
    config.write_text(
        "steps = 3\nseed = 5\n[model]\nwidth = 16\nlayers = 1\nmixer = {kind='attention', heads=2}\n"
        "[training]\nbatch = 64\nrate = 0.001\n[data]\nheld_out = 0.3\n"
    )
    code, _, err = run(
        "train", "text", book, "--out", tmp_path / "run", "--config", config, "--set", "training.rate=0.5"
    )
    assert code == 0, err
    spec = RunFolder(tmp_path / "run").read_spec()
    assert (spec.seed, spec.model["width"], spec.data["held_out"], spec.training["rate"]) == (5, 16, 0.3, 0.5)


def test_settings_as_written():
    assert read_changes(["a.b=3", "c=x,y", "d=true", "e=None", "model.f=[1,2]", "g=8640/2880/2880"], None) == (
        {},
        {"a.b": 3, "c": "x,y", "d": True, "e": None, "f": [1, 2], "g": "8640/2880/2880"},
    )
    with pytest.raises(WeftError, match="sets nothing"):
        read_changes(["rate"], None)


@pytest.mark.parametrize("task", TASKS)
def test_help_shows_every_default_of_a_task(run, monkeypatch, task):
    monkeypatch.setattr(sys, "argv", ["weft", "train", task, "--help"])
    code, words, _ = run("train", task, "--help")
    assert code == 0
    assert "training.rate = 0.003" in words and "data.validation = none" in words
    assert list_defaults(task) in words


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["train", "poetry", "BOOK", "--out", "RUN"], "there is no task 'poetry': choose one of text"),
        (["train", "text", "BOOK"], "where shall the run go?"),
        (["train", "text", "absent.txt", "--out", "RUN"], "absent.txt"),
        (["train", "text", "EMPTY", "--out", "RUN"], "empty.txt"),
        (["train", "text", "BOOK", "--out", "BOOK"], "is a file"),
        (["train", "text", "BOOK", "--out", "RUN", "--steps", "2", "--minutes", "1"], "give one of them"),
        (["train", "text", "BOOK", "--out", "RUN", "--steps", "0"], "give 1 or more"),
        (["train", "text", "BOOK", "--out", "RUN", "--minutes", "-1"], "give a time above 0"),
        (
            ["train", "text", "BOOK", "--out", "RUN", "--preset", "vit-b16"],
            "family vision, but task text takes decoder",
        ),
        (["train", "text", "BOOK", "--out", "RUN", "--preset", "gpt9"], "there is no preset"),
        (["train", "text", "BOOK", "--out", "RUN", "--steps", "2", "--set", "training.speed=3"], "no field 'speed'"),
        (["train", "text", "BOOK", "--out", "RUN", "--steps", "2", "--set", "data.speed=3"], "no field 'speed'"),
        (["train", "text", "BOOK", "--out", "RUN", "--steps", "2", "--set", "layers=many"], "layers"),
        (["train", "text", "sample:dates", "--out", "RUN"], "task text has no sample 'dates'"),
        (["train", "text", "BOOK", "--out", "RUN", "--device", "tpu9"], "no device"),
        (["predict", "absent", "hello"], "absent is not a run folder"),
        (["predict", "BOOK", "hello"], "is a file"),
        (["eval", "absent", "BOOK"], "absent is not a run folder"),
    ],
)
def test_user_errors_are_one_sentence_and_leave_nothing(run, book, tmp_path, words, sentence):
    (tmp_path / "empty.txt").write_text("")
    names = {"BOOK": book, "RUN": tmp_path / "run", "EMPTY": tmp_path / "empty.txt"}
    code, out, err = run(*(names.get(word, word) for word in words))
    assert (code, out) == (2, ""), err
    last = err.splitlines()[-1]
    assert last.startswith("weft: ") and sentence in last and "Traceback" not in err
    assert not (tmp_path / "run" / "spec.json").exists()


def test_a_run_damaged_by_hand_is_explained(run, book, tmp_path):
    out = tmp_path / "run"
    run("train", "text", book, "--out", out, "--steps", 2, *settings())
    weights = (out / "model.safetensors").read_bytes()
    (out / "model.safetensors").write_bytes(weights[: len(weights) // 2])
    code, _, err = run("predict", out, "x")
    assert code == 2 and "not a complete safetensors file" in err
    (out / "spec.json").write_text("{")
    code, _, err = run("predict", out, "x")
    assert code == 2 and "spec.json cannot be read" in err


def test_control_c_in_the_demo_stops_with_one_line(tmp_path):
    words = [sys.executable, "-m", "weft", "demo", "--seconds", "600", "--out", str(tmp_path / "demo")]
    heard = {"preexec_fn": lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)}  # a background shell ignores it
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **heard) as child:
        assert child.stderr.readline().startswith("reading")
        time.sleep(0.2)
        child.send_signal(signal.SIGINT)
        out, err = child.communicate(timeout=60)
    assert (child.returncode, out) == (130, "")
    assert "Traceback" not in err and err.splitlines()[-1] == "weft: stopped"


def test_the_demo_as_json_and_in_words(run, tmp_path, monkeypatch):
    monkeypatch.setattr(demo, "CONTINUATION", 7)
    out = tmp_path / "demo"
    code, words, err = run("demo", "--seconds", 6, "--out", out, "--json")
    assert code == 0, err
    found = json.loads(words)
    assert found["text"]["loss"] < 6 and found["translation"]["metrics"]["bleu"] >= 0
    assert len(found["translation"]["examples"]) == demo.SHOWN
    assert (out / "alignment.png").read_bytes().startswith(b"\x89PNG")
    code, words, err = run("demo", "--seconds", 6, "--out", out)  # the one before is replaced
    assert code == 0, err
    assert "it expects" in words and "What next" in words and "of new ones are right" in words
