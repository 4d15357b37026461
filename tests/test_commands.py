"""The commands that train and use runs, as a user types them."""

from __future__ import annotations

import io
import json
import re
import signal
import subprocess
import sys
import time

import pytest
from rich.console import Console
from typer.testing import CliRunner

import weft
from weft.checkpoints.run_folder import RunFolder
from weft.cli.commands import demo
from weft.cli.main import app
from weft.cli.metrics import print_metrics
from weft.cli.settings import list_defaults, override, read_config, read_settings
from weft.foundation.errors import WeftError
from weft.tasks.registry import trainable_tasks

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
    assert "plan: " in err and "validation loss" in err and "tokens/s" in err
    written = {path.name for path in out.iterdir()}
    assert written >= {"spec.json", "model.safetensors", "tokenizer.json", "metrics.jsonl", "plan.json", "curves.png"}
    assert found["report"] == str(out / "report.html") and "report.html" in written
    assert (out / "curves.png").read_bytes().startswith(b"\x89PNG")

    code, words, _ = run("eval", out, book, "--json")
    assert code == 0 and {"loss", "perplexity", "bits_per_byte"} <= json.loads(words).keys()
    code, words, _ = run("eval", out, book)
    assert code == 0 and "perplexity" in words

    code, words, _ = run("predict", out, "she ", "the ", "--max-tokens", 5, "--seed", 3, "--json")
    answers = json.loads(words)
    assert code == 0 and [answer["input"] for answer in answers] == ["she ", "the "]
    assert all(len(answer["tokens"]) == 5 for answer in answers)
    # A model of 30 steps may still say <unknown>, which no text shows.
    assert all(answer["output"] == "".join(answer["tokens"]).replace("<unknown>", "") for answer in answers)
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

    real = TextTask._metrics
    monkeypatch.setattr(TextTask, "_metrics", lambda *given: real(*given) | {"loss": 0.01})
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


def test_the_main_metric_comes_first_and_stands_out(capsys):
    console = Console(force_terminal=True, width=80, highlight=False)
    print_metrics(console, {"loss": 2.0, "accuracy": 0.5, "examples": 1234}, "accuracy", {"simple": 0.25})
    lines = capsys.readouterr().out.splitlines()
    assert [re.sub(r"\x1b\[[0-9;]*m", "", line).split()[0] for line in lines] == [
        "accuracy",
        "loss",
        "examples",
        "simple",
    ]
    assert ["\x1b[1m" in line for line in lines] == [True, False, False, False]


def spec_of(run, tmp_path, book, *words):
    """The spec and plan of a run that a config of seed 5, 3 steps and a preset began, with more on the command line."""
    out = tmp_path / f"run-{len(list(tmp_path.iterdir()))}"
    (tmp_path / "run.toml").write_text(
        "steps = 3\nseed = 5\npreset = 'nano-llama'\n"
        "[model]\nwidth = 16\nlayers = 1\nmixer = {kind='attention', heads=2}\n"
        "[training]\nbatch = 64\nthreads = 1\nguard = false\n"
    )
    code, _, err = run("train", "text", book, "--out", out, "--config", tmp_path / "run.toml", *words)
    assert code == 0, err
    return RunFolder(out).read_spec(), RunFolder(out).read_plan()


@pytest.mark.parametrize(
    ("words", "seed", "steps"),
    [
        ([], 5, 3),
        (["--seed", 0], 0, 3),
        (["--set", "seed=0"], 0, 3),
        (["--set", "seed=0", "--seed", 7], 7, 3),
        (["--set", "training.steps=2"], 5, 2),
        (["--set", "steps=2"], 5, 2),
        (["--set", "minutes=9", "--steps", 2], 5, 2),
        (["--set", "training.steps=2", "--steps", 1], 5, 1),
    ],
)
def test_the_command_line_wins_over_set_and_set_over_the_config(run, tmp_path, book, words, seed, steps):
    spec, plan = spec_of(run, tmp_path, book, *words)
    assert (spec.seed, plan["steps"]) == (seed, steps)


def test_auto_is_a_preset_that_can_be_asked_for(run, tmp_path, book):
    named, auto = (spec_of(run, tmp_path, book, *words)[0].model for words in ([], ["--preset", "auto"]))
    assert named["feedforward"] != auto["feedforward"]  # nano-llama is gated, what suits text here is not


def test_seed_0_is_not_that_of_a_run_of_another_seed(run, tmp_path, book):
    out = tmp_path / "run"
    same = ["train", "text", book, "--out", out, "--steps", 2, *settings("training.guard=false")]
    assert run(*same, "--seed", 5)[0] == 0
    assert run(*same, "--resume")[0] == 0
    code, _, err = run(*same, "--resume", "--seed", 0)
    assert code == 2 and "--seed 0: the run in" in err


def test_how_long_is_one_decision():
    lower = {"minutes": 3, "training.steps": 5, "seed": 1}
    assert override(lower, {"seed": 2}) == {"minutes": 3, "training.steps": 5, "seed": 2}
    assert override(lower, {"steps": 7}) == {"steps": 7, "seed": 1}
    assert read_config(None) == {}


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("seed = 'x'", "seed 'x': give a whole number"),
        ("steps = 2.5", "steps 2.5: give a whole number"),
        ("minutes = 'long'", "minutes 'long': give a number"),
        ("preset = 3", "preset 3: give a name"),
        ("steps = 2\nminutes = 1", "give one of them"),
        ("minutes = 1\n[training]\nsteps = 3", "give one of them"),
    ],
)
def test_a_config_of_wrong_types_is_one_sentence(run, tmp_path, book, line, sentence):
    (tmp_path / "run.toml").write_text(line)
    code, out, err = run("train", "text", book, "--out", tmp_path / "run", "--config", tmp_path / "run.toml")
    assert (code, out) == (2, "") and sentence in err and err.count("\n") == 1


def test_settings_as_written():
    found = read_settings(["a.b=3", "c=x,y", "d=true", "e=None", "model.f=[1,2]", "g=8640/2880/2880"])
    assert found == {"a.b": 3, "c": "x,y", "d": True, "e": None, "f": [1, 2], "g": "8640/2880/2880"}
    with pytest.raises(WeftError, match="sets nothing"):
        read_settings(["rate"])


@pytest.mark.parametrize("task", trainable_tasks())
def test_help_shows_every_default_of_a_task(monkeypatch, task):
    monkeypatch.setattr(sys, "argv", ["pytest"])
    found = CliRunner().invoke(app, ["train", task, "--help"])
    words = found.stdout
    assert found.exit_code == 0
    assert "training.rate = 0.003" in words and "data.validation = none" in words
    assert list_defaults(task) in words


@pytest.mark.parametrize(
    "words", [["--help"], ["poetry", "--help"], ["--out", "text", "--help"], ["--help", "--preset", "images"]]
)
def test_only_a_task_gets_its_defaults(monkeypatch, words):
    monkeypatch.setattr(sys, "argv", ["weft", "train", "text", "--help"])
    found = CliRunner().invoke(app, ["train", *words])
    assert found.exit_code == 0 and "Examples:" in found.stdout and "training.rate =" not in found.stdout


def test_a_task_is_found_behind_options():
    found = CliRunner().invoke(app, ["train", "--steps", "3", "--out", "images", "text", "--help"])
    assert found.exit_code == 0 and "Data of task text" in found.stdout


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["train", "poetry", "BOOK", "--out", "RUN"], "there is no task 'poetry': choose one of captions"),
        (["train", "text", "BOOK"], "no folder for the run: add --out"),
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
    assert "Most probable after" in words and "What next" in words and "of new ones are right" in words
