"""What somebody new to Weft types: odd numbers, typing errors, the same command again, tables as they are."""

from __future__ import annotations

import json
import re

import pytest
from typer.testing import CliRunner

import weft
from weft.cli.main import app
from weft.cli.settings import list_defaults
from weft.data.samples import samples
from weft.foundation.errors import SpecError, WeftError
from weft.models.presets import preset
from weft.tasks.registry import trainable_tasks
from weft.tasks.task import LADDER, GenerationOptions, Size
from weft.training.reporting import Reporter
from weft.training.training_spec import TrainingSpec

TEXT = "she sells sea shells by the sea shore; the shells she sells are sea shells.\n" * 40
SMALL = {
    "width": 22, "layers": 1, "mixer.heads": 1, "length": 19, "data.held_out": 0.2,
    "training.batch": 133, "training.threads": 1, "training.guard": False,
}  # fmt: skip

QUICK = {"training.guard": False, "training.threads": 1, "training.batch": 67}


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A folder with a text and a run of three steps on it."""
    place = tmp_path_factory.mktemp("first steps")
    (place / "book.txt").write_text(TEXT)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WEFT_CACHE", str(place / "cache"))
        weft.train("text", place / "book.txt", place / "a run", steps=3, seed=5, set=SMALL)
        yield place


@pytest.fixture
def run(capsys, monkeypatch):
    """`run("train", ...)` gives (exit code, stdout, stderr)."""
    monkeypatch.delenv("WEFT_DEBUG", raising=False)
    monkeypatch.setenv("COLUMNS", "200")

    def call(*words):
        with pytest.raises(SystemExit) as stopped:
            app([str(word) for word in words], prog_name="weft")
        return stopped.value.code or 0, *capsys.readouterr()

    return call


class Heard(Reporter):
    def __init__(self):
        self.notes, self.plans = [], []

    def on_note(self, text):
        self.notes.append(text)

    def on_plan(self, plan, words):
        self.plans.append((plan, words))


def settings(changes):
    return [word for name, value in changes.items() for word in ("--set", f"{name}={value}")]


# --- answers ---


@pytest.mark.parametrize(
    ("option", "number", "sentence"),
    [
        ("max_tokens", 0, "max_tokens 0 gives no answer: use 1 or more"),
        ("beam", 0, "beam 0 gives no answer: use 1 or more"),
        ("samples", 0, "samples 0 gives no answer: use 1 or more"),
        ("batch", 0, "batch 0 gives no answer"),
        ("temperature", -1.0, "use 0 (greedy) or more"),
        ("temperature", float("nan"), "use 0 (greedy) or more"),
        ("top_k", 0, "use at least 1"),
        ("top_p", 0.0, "use more than 0"),
        ("min_p", 1.5, "use 0 to 1"),
        ("repetition", 0.0, "use 1 (none)"),
    ],
)
def test_numbers_that_make_no_answer_are_refused(option, number, sentence):
    with pytest.raises(WeftError, match=re.escape(sentence)):
        GenerationOptions(**{option: number})


def test_no_tokens_are_not_the_usual_length(run, home):
    code, out, err = run("predict", home / "a run", "she", "--max-tokens", 0)
    assert (code, out) == (2, "") and err == "weft: max_tokens 0 gives no answer: use 1 or more, or leave it out\n"


def test_a_run_is_one_line_and_says_what_it_takes(home):
    found = weft.load(home / "a run")
    count = sum(weight.numel() for weight in found.module.parameters())
    assert repr(found) == f"Run(text, decoder, {count:,} parameters, {home / 'a run'})"
    for wrong in (5, None):
        with pytest.raises(WeftError, match=f"one text or path, or a list of inputs, not {wrong}"):
            found.predict(wrong)


def test_judging_on_what_was_learned_is_noted(run, home):
    other = home / "other.txt"
    other.write_text(TEXT[:500])
    words = f"note: the run was trained on {home / 'book.txt'}: other data would tell more\n"
    code, out, err = run("eval", home / "a run", home / "book.txt", "--json")
    assert code == 0 and json.loads(out)["loss"] > 0 and err.startswith(words)
    assert "note:" not in run("eval", home / "a run", other)[2]


# --- models ---


@pytest.mark.parametrize(
    ("task", "data", "changes"),
    [
        ("text", "BOOK", {"width": 32}),
        ("text", "BOOK", {"width": 50, "layers": 1}),
        ("images", "sample:digits", {"width": 34}),
        ("forecast", "sample:brownian", {"layers": 1}),
        ("forecast", "sample:brownian", {"layers": 3}),
    ],
)
def test_width_and_layers_alone_make_a_model(home, tmp_path, task, data, changes):
    data = home / "book.txt" if data == "BOOK" else data
    found = weft.train(task, data, tmp_path / "run", steps=1, set=changes | QUICK)
    assert all(getattr(found.module.spec, name) == value for name, value in changes.items())


def test_heads_divide_any_width_into_even_parts_and_the_ladder_keeps_its_own():
    for width in range(2, 800, 2):
        heads = Size(width=width).heads
        assert width % heads == 0 and width // heads % 2 == 0
    assert [size.heads for size in LADDER] == [1, 2, 3, 4, 5, 6, 8, 6, 8, 12]


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: preset("gpt2").replace(layer=1), "no field 'layer': did you mean layers? It has version, width,"),
        (lambda: preset("gpt2").replace(**{"mixer.head": 1}), "AttentionSpec has no field 'head': did you mean heads?"),
        (lambda: preset("gpt2").replace(**{"mixr.heads": 1}), "no field 'mixr' to set 'mixr.heads' in: did you mean"),
        (lambda: TrainingSpec(lr=1), "TrainingSpec has no field 'lr': It has steps, least_steps, batch,"),
    ],
)
def test_typing_errors_are_met_with_the_fields_there_are(make, sentence):
    with pytest.raises(SpecError, match=re.escape(sentence)) as caught:
        make()
    assert "model_fields" not in str(caught.value)


# --- training ---


@pytest.mark.parametrize("minutes", ["nan", "inf", "0"])
def test_a_time_that_is_none_is_refused_and_leaves_no_folder(run, home, tmp_path, minutes):
    code, _, err = run("train", "text", home / "book.txt", "--out", tmp_path / "run", "--minutes", minutes)
    assert code == 2 and err == f"weft: {minutes} minutes: give a time above 0, such as 5\n"
    assert not (tmp_path / "run").exists()


def test_a_training_that_fails_removes_only_the_folder_it_made(home, tmp_path):
    (tmp_path / "mine").mkdir()
    for name in ("made", "mine"):
        with pytest.raises(SpecError):
            weft.train("text", home / "book.txt", tmp_path / name, steps=1, set={"layer": 1})
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_the_same_command_resumes_and_what_differs_is_named(run, home):
    out = home / "a run"
    same = ["train", "text", home / "book.txt", "--out", out, "--resume", "--steps", 3, "--seed", 5, *settings(SMALL)]
    code, _, err = run(*same)
    assert code == 0 and "note: continuing from step 3" in err
    other = ["--set", "width=64", "--set", "data.held_out=0.3", "--set", "training.rate=0.1"]
    code, _, err = run(*same, *other)
    assert code == 2
    assert "weft: --set width=64, --set data.held_out=0.3, --set training.rate=0.1: the run in" in err
    assert "--steps 4: the run in" in run(*same, "--steps", 4)[2]
    assert "--seed 6: the run in" in run(*same, "--seed", 6)[2]
    assert "--preset nano-gpt: the run in" in run(*same, "--preset", "nano-gpt")[2]
    assert (
        "--minutes 2: the run in"
        in run("train", "text", home / "book.txt", "--out", out, "--resume", "--minutes", 2)[2]
    )


def test_a_preset_may_be_named_again(home, tmp_path):
    order = {"preset": "nano-gpt", "steps": 1, "set": {"width": 18, "layers": 1, "mixer.heads": 1, **QUICK}}
    weft.train("text", home / "book.txt", tmp_path / "run", **order)
    weft.train("text", home / "book.txt", tmp_path / "run", resume=True, **order)
    with pytest.raises(WeftError, match=r"^--preset gpt2: "):
        weft.train("text", home / "book.txt", tmp_path / "run", resume=True, preset="gpt2")


def test_nothing_to_resume_is_noted(home, tmp_path):
    heard = Heard()
    weft.train("text", home / "book.txt", tmp_path / "run", resume=True, steps=1, set=SMALL, reporter=heard)
    assert heard.notes == [f"{tmp_path / 'run'} holds no run to resume: a new one begins"]


def test_validation_losses_say_of_how_many_tokens_and_what_next_is_quoted(run, home, tmp_path):
    some = {**SMALL, "training.evaluate_tokens": 133}
    code, out, err = run("train", "text", home / "book.txt", "--out", tmp_path / "a b", "--steps", 1, *settings(some))
    assert code == 0 and re.search(r"step 1: validation loss [\d.]+ on 133 of [56]\d\d tokens\n", err)
    assert f"next: weft predict '{tmp_path / 'a b'}' ..." in out
    whole = {**SMALL, "training.evaluate_tokens": 10_000}
    err = run("train", "text", home / "book.txt", "--out", tmp_path / "c", "--steps", 1, *settings(whole))[2]
    assert re.search(r"step 1: validation loss [\d.]+\n", err)


def test_the_plan_says_how_much_learns_beside_frozen_weights(home, tmp_path):
    heard = Heard()
    order = {"base": home / "a run", "steps": 1, "set": {"training.lora": 2, **QUICK}}
    weft.train("text", home / "book.txt", tmp_path / "tuned", **order, reporter=heard)
    ((plan, words),) = heard.plans
    assert words.startswith(f"{plan.parameters:,} parameters and adapters (")
    learning = int(re.search(r"\(([\d,]+) trainable\)", words)[1].replace(",", ""))
    assert 0 < learning < plan.parameters and learning % 2 == 0


@pytest.mark.parametrize("task", trainable_tasks())
def test_help_names_the_samples_of_a_task(task):
    assert f"Built-in data: {', '.join(f'sample:{name}' for name in samples()[task])}\n" in list_defaults(task)


def test_a_series_with_comments_is_forecast_without_them(tmp_path, monkeypatch):
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path / "cache"))
    rows = [f"2020-01-{day:03d},{day % 7},{day % 5 / 2},{'rain' if day % 3 else ''}" for day in range(120)]
    path = tmp_path / "a.csv"
    path.write_text("\n".join(("date,load,temp,comment", *rows)))
    heard = Heard()
    found = weft.train("forecast", path, tmp_path / "run", steps=1, set={"data.horizon": 3, **QUICK}, reporter=heard)
    left_out, repeated = heard.notes  # the series repeats itself every 35 days
    assert left_out == "left out, because they hold no numbers: comment" and "held-out windows" in repeated
    assert set(found.predict(path)) == {"load", "temp"}


def test_eval_reads_other_columns(tmp_path, monkeypatch):
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path / "cache"))
    rows = [(f"text {n}", "ab"[n % 2]) for n in range(24)]
    (tmp_path / "train.csv").write_text("text,mood\n" + "".join(f"{t},{m}\n" for t, m in rows))
    (tmp_path / "dev.csv").write_text("id,label,words\n" + "".join(f"{n},{m},{t}\n" for n, (t, m) in enumerate(rows)))
    small = {"width": 8, "layers": 1, "training.guard": False, "data.columns": ["text", "mood"]}
    weft.train("classification", tmp_path / "train.csv", tmp_path / "run", steps=1, set=small)
    order = ["eval", str(tmp_path / "run"), str(tmp_path / "dev.csv"), "--json"]
    assert CliRunner().invoke(app, order).exit_code == 2
    found = CliRunner().invoke(app, [*order, "--set", "data.columns=words,label"])
    assert found.exit_code == 0 and json.loads(found.stdout)["examples"] == 24
    refused = CliRunner().invoke(app, [*order, "--set", "width=3"])
    assert refused.exit_code == 2
