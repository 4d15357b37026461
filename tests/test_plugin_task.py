"""A task from another package: one file and one entry point, and every command knows it; a run names no code."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from plugins import write_distribution
from weft.tasks.registry import TASKS, task_named, trainable_tasks

ROOT = Path(__file__).parents[1] / "src"
PARITY = '''
"""Task parity: is the number of ones among some bits even or odd?"""

from dataclasses import dataclass

import torch

from weft.data.readers.texts import read_labeled
from weft.models.encoder import EncoderSpec, PooledSpec, TokensSpec
from weft.models.part_specs import AttentionSpec
from weft.tasks.support.class_labels import class_answers, class_probabilities, measure_classes
from weft.tasks.support.losses import class_loss
from weft.tasks.task import Batch, PreparedData, Split, Task

CLASSES = ("even", "odd")


@dataclass(frozen=True)
class Bits(Split):
    rows: list  # of (bits, label), all as long

    def __len__(self):
        return len(self.rows)

    @property
    def tokens(self):
        return sum(len(bits) for bits, _ in self.rows)

    def batch(self, examples, seed=None, epoch=0):
        rows = [self.rows[number] for number in examples]
        tokens = torch.tensor([[int(bit) for bit in bits] for bits, _ in rows])
        labels = torch.tensor([CLASSES.index(label) for _, label in rows])
        return Batch({"tokens": tokens}, labels, len(rows), tokens.numel())


class ParityTask(Task):
    name = "parity"
    families = ("encoder",)
    metric = "accuracy"
    answers = CLASSES

    @classmethod
    def prepare(cls, paths, options, seed, cache, known=None):
        rows = read_labeled(paths).rows
        held = max(1, round(options.held_out * len(rows)))
        return PreparedData(cls(options), Bits(rows[held:]), Bits(rows[:held]))

    def read(self, paths, cache):
        return Bits(read_labeled(paths, learn=False).rows)

    def default_model(self, size):
        output = PooledSpec(pool="mean", classes=len(CLASSES))
        mixer = AttentionSpec(heads=size.heads)
        return EncoderSpec(
            width=size.width, layers=size.layers, input=TokensSpec(vocabulary=2), mixer=mixer, output=output
        )

    def loss(self, module, batch, smoothing=0.0):
        return class_loss(module(**batch.inputs), batch.labels, batch.count, smoothing)

    def measure(self, module, split, size):
        return measure_classes(module, split, size)

    def predict(self, module, inputs, generation):
        found = [class_probabilities(module, {"tokens": torch.tensor([[int(bit) for bit in bits]])}) for bits in inputs]
        return class_answers(inputs, torch.cat(found), CLASSES)
'''
PICTURE = '''
"""The bits alone, as a picture of its own."""

from weft.inspection.pictures.generic import observe_anything
from weft.inspection.pictures.panels import Panels, shares_panel
from weft.inspection.pictures.task_picture import TaskPicture

from dataclasses import replace
from parity_task import ParityTask


class DrawnTask(ParityTask):
    name = "drawn"
    picture = "bits"


def observe(run, given, how):
    return replace(observe_anything(run, given, how), picture="bits")


PICTURE = TaskPicture("bits", observe, lambda observation, options: Panels([shares_panel(observation)], []))
'''
TINY = ("--steps", "3", "--set", "width=12", "--set", "layers=1", "--set", "mixer.heads=3")


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A folder with the distribution, data, and `weft(...)`: a command in a process of its own, with it or without."""
    folder = tmp_path_factory.mktemp("parity")
    code = {"parity_task": PARITY, "parity_picture": PICTURE}
    points = {
        "weft.tasks": {"parity": "parity_task:ParityTask", "drawn": "parity_picture:DrawnTask"},
        "weft.pictures": {"bits": "parity_picture:PICTURE"},
    }
    write_distribution(folder / "site", "weft-parity", code, points)
    rows = [f"{number:07b}" for number in range(0, 128, 3)]
    lines = [f"{bits}\t{('even', 'odd')[bits.count('1') % 2]}" for bits in rows]
    (folder / "bits.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


def python(home, *words, installed=True):
    """(exit code, stdout, stderr) of `python ...` in a process of its own, with the distribution or without it."""
    paths = [str(ROOT), str(home / "site")] if installed else [str(ROOT)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "WEFT_CACHE": str(home / "cache")}
    environment.pop("WEFT_DEBUG", None)
    done = subprocess.run(
        [sys.executable, *map(str, words)], capture_output=True, text=True, env=environment, cwd=home, check=False
    )
    return done.returncode, done.stdout, done.stderr


@pytest.fixture(scope="module")
def run(home):
    code, _, errors = python(home, "-m", "weft", "train", "parity", "bits.tsv", "--out", "run", *TINY)
    assert code == 0, errors
    return home / "run"


def test_every_command_knows_the_task(home, run):
    code, told, errors = python(home, "-m", "weft", "predict", run, "0110100", "1111111", "--json")
    assert code == 0, errors
    answers = json.loads(told)
    assert [answer["input"] for answer in answers] == ["0110100", "1111111"]
    assert all(answer["output"] in ("even", "odd") for answer in answers)
    code, told, errors = python(home, "-m", "weft", "eval", run, "bits.tsv", "--json")
    assert code == 0 and "was trained on bits.tsv" in errors
    found = json.loads(told)
    assert found["examples"] == 43 and found["metric"] == "accuracy" and 0 <= found["accuracy"] <= 1
    code, told, errors = python(home, "-m", "weft", "look", run, "0110100", "--out", "x.html", "--json")
    assert code == 0, errors
    found = json.loads(told)
    assert (home / "x.html").is_file() and found["tokens"] == list("0110100") and found["task"] == "parity"
    assert [panel["kind"] for panel in found["panels"]] == ["tokens", "bars", "attention"]
    assert found["kinds"][0] == "overview" and {"attention", "rollout", "effects", "lens"} <= set(found["kinds"])


def test_every_kind_of_picture_is_drawn_in_a_new_process(home, run):
    script = """
import weft
from weft.inspection.pictures.look import kinds_of, observe, picture_of
from weft.inspection.pictures.look_options import LookOptions
run = weft.load('run')
observation = observe(run, '0110100')
for kind in kinds_of(observation):
    assert picture_of(observation, LookOptions(kind, explain=True)).html()
print([answer.output for answer in run.answer(['0110100', '1111111'])], run.task.name)
"""
    code, told, errors = python(home, "-c", script)
    assert code == 0, errors
    _, again, _ = python(home, "-m", "weft", "predict", run, "0110100", "1111111", "--json")
    assert told.strip() == f"{[answer['output'] for answer in json.loads(again)]} parity"


def test_help_and_mistakes_list_it(home):
    code, told, _ = python(home, "-m", "weft", "train", "--help")
    assert code == 0 and "translation, drawn, parity." in " ".join(told.split())
    code, told, _ = python(home, "-m", "weft", "train", "parity", "--help")
    assert code == 0 and "Data of task parity (--set data.NAME=VALUE):" in told and "Built-in data" not in told
    code, _, errors = python(home, "-m", "weft", "train", "party", "bits.tsv", "--out", "x")
    assert code == 2 and "there is no task 'party': choose one of captions, " in errors and "drawn, parity" in errors
    for words, sentence in (
        (("train", "parity", "bits.tsv", "--out", "x", "--preset", "bert-base"), "leave --preset out"),
        (("eval", "run", "bits.tsv", "--shots", "1"), "task parity takes no examples in a prompt"),
        (("train", "embedding", "bits.tsv", "--out", "x"), "runs of task embedding are imported, not trained"),
    ):
        code, _, errors = python(home, "-m", "weft", *words)
        assert code == 2 and sentence in errors.splitlines()[-1], errors


def test_a_picture_of_its_own_is_one_more_file(home):
    code, _, errors = python(home, "-m", "weft", "train", "drawn", "bits.tsv", "--out", "drawn", *TINY)
    assert code == 0, errors
    code, told, errors = python(home, "-m", "weft", "look", "drawn", "0110100", "--out", "y.svg", "--json")
    assert code == 0, errors
    found = json.loads(told)
    assert [panel["kind"] for panel in found["panels"]] == ["bars"] and found["kinds"][:2] == ["bits", "attention"]


def test_without_the_package_the_run_is_refused_in_one_sentence(home, run):
    for words in (("predict", run, "0110100"), ("eval", run, "bits.tsv"), ("look", run, "0110100", "--out", "z.html")):
        code, told, errors = python(home, "-m", "weft", *words, installed=False)
        assert (code, told, errors.count("\n")) == (2, "", 1)
        assert errors.startswith(f"weft: {run} is a run of task 'parity', which no installed package provides: ")
    assert not (home / "z.html").exists()


def test_a_run_folder_names_no_code(home, run):
    (home / "site" / "spy.py").write_text("open('ran', 'w').close()\ndef go(*words): pass\n", encoding="utf-8")
    names = ["os:system", "parity_task:ParityTask", "weft.tasks.text.TextTask", "spy", "spy:go", "../spy"]
    for number, name in enumerate(names):
        other = shutil.copytree(run, home / f"other-{number}")
        spec = json.loads((other / "spec.json").read_text(encoding="utf-8"))
        (other / "spec.json").write_text(json.dumps({**spec, "task": name}), encoding="utf-8")
    code, _, errors = python(home, "-m", "weft", "predict", "other-0", "0110100")
    assert (code, errors.count("\n")) == (2, 1)
    assert "other-0 is a run of task 'os:system', which no installed package provides" in errors
    script = """
import weft
for number in range(6):
    try:
        weft.load(f'other-{number}')
    except weft.WeftError as error:
        print(error)
"""
    code, told, errors = python(home, "-c", script)
    assert (code, errors) == (0, "")
    for name, sentence in zip(names, told.splitlines(), strict=True):
        assert f"is a run of task {name!r}, which no installed package provides" in sentence
    assert not (home / "ran").exists()


def test_names_cost_no_torch(home):
    script = "import sys; from weft.tasks.registry import trainable_tasks as t; print(*t(), 'torch' in sys.modules)"
    code, told, errors = python(home, "-c", script)
    assert code == 0, errors
    assert told.split() == [*trainable_tasks(), "drawn", "parity", "False"]


@pytest.mark.parametrize("name", TASKS.names())
def test_each_task_declares_what_other_rooms_ask(name):
    from weft.inspection.pictures.task_picture import PICTURES

    kind = task_named(name)
    assert kind.name == name and kind.trainable == (name in trainable_tasks())
    assert kind.picture in PICTURES and PICTURES[kind.picture].kind and kind.metric and kind.example
    assert kind.generates or not kind.continues_input


def test_a_task_without_samples_says_so():
    from weft.foundation.errors import WeftError
    from weft.tasks.task import find_sample

    with pytest.raises(WeftError, match="task parity has no built-in sample: give files"):
        find_sample("parity", ["sample:"], 0)


def test_an_entry_that_is_no_task_is_told(tmp_path, monkeypatch):
    from weft.foundation.errors import WeftError

    points = {"weft.tasks": {"kite": "kite_task:Kite", "renamed": "weft.tasks.text:TextTask"}}
    folder = write_distribution(tmp_path, "kites", {"kite_task": "class Kite: name = 'kite'\n"}, points)
    monkeypatch.syspath_prepend(str(folder))
    for name in ("kite", "renamed"):
        with pytest.raises(WeftError, match=f"the package that adds task '{name}' gives no Task of that name"):
            task_named(name)


# --- nothing outside of tasks knows a task by its name ---------------------------------------------------------------


@pytest.mark.parametrize("room", ["inspection", "cli", "runs"])
def test_no_room_compares_the_name_of_a_task(room):
    import ast

    for path in (ROOT / "weft" / room).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Compare):
                words = {one.value for one in ast.walk(node) if isinstance(one, ast.Constant)}
                assert not words & set(TASKS.builtin), f"{path.name}, line {node.lineno}"
