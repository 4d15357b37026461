"""Learning from little: the fitted last layer, what decides between it and all weights, and that it is resumed."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch

import foreign_folders
import weft
from weft.checkpoints.run_folder import RunFolder
from weft.foundation.errors import WeftError
from weft.tasks.support.frozen_head import (
    Vectors,
    cross_validate,
    fit_linear,
    read_vectors,
    set_last_map,
)
from weft.training.guards import TrainingError
from weft.training.loop import Loop
from weft.training.planning.plan import TrainingPlan
from weft.training.pretrained import head_choice
from weft.training.pretrained.head_choice import HeadChoice
from weft.training.reporting import Reporter

FAST = {"training.batch": 61, "training.threads": 1, "training.guard": False}
TEXTS = {"good": ("the cat sat on mat", "cats sat"), "bad": ("a dog on the mats", "dogs . a dog")}


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bert")
    foreign_folders.bert(folder / "folder")
    return weft.import_checkpoint(folder / "folder", folder / "run", certificate=False).folder


@pytest.fixture
def moods(tmp_path):
    rows = [(f"{text} {'on ' * (n % 5)}".strip(), label) for n in range(12) for label in TEXTS for text in TEXTS[label]]
    (tmp_path / "moods.tsv").write_text("".join(f"{text}\t{label}\n" for text, label in rows))
    return tmp_path / "moods.tsv"


class Notes(Reporter):
    def __init__(self):
        self.heard: list[str] = []

    def on_note(self, text):
        self.heard.append(text)


def made_up(count, classes=3, width=7, seed=0):
    random = np.random.default_rng(seed)
    labels = random.integers(0, classes, count)
    x = random.normal(0, 1, (count, width)) * np.arange(1, width + 1) + np.eye(classes, width)[labels] * 2 + 5
    return Vectors(torch.tensor(x), torch.tensor(labels), torch.arange(count))


# --- the fit ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("penalty", [30.0, 3.0])
def test_the_map_is_where_the_penalized_loss_is_lowest(penalty):
    """There (p - y)^T z + penalty V = 0 and the mean of p - y = 0, with V = W deviation."""
    vectors = made_up(211)
    x, y = vectors.x.numpy(), np.eye(3)[vectors.labels.numpy()]
    found = fit_linear(vectors, 3, (300.0, penalty))[1]
    z = (x - x.mean(0)) / x.std(0)
    p = torch.softmax(vectors.x @ found.weight.T + found.bias, -1).numpy()
    assert np.abs((p - y).T @ z + penalty * found.weight.numpy() * x.std(0)).max() < 0.02
    assert np.abs((p - y).mean(0)).max() < 1e-4


def test_what_is_always_the_same_changes_nothing():
    vectors = made_up(89)
    x = torch.cat((vectors.x, torch.full((89, 1), 4.2, dtype=torch.float64)), 1)
    one, more = (fit_linear(v, 3, (10.0,))[0] for v in (vectors, Vectors(x, vectors.labels, vectors.owners)))
    assert bool((more.weight[:, -1] == 0).all())
    assert torch.allclose(one.weight, more.weight[:, :-1]) and torch.allclose(one.bias, more.bias)


def test_no_answer_is_judged_by_a_map_that_was_fitted_to_it():
    """Labels that are chance: fitted losses are far below log 2, cross-validated ones are not."""
    random = torch.Generator().manual_seed(0)
    x, labels = torch.randn(60, 59, generator=random).double(), torch.randint(0, 2, (60,), generator=random)
    vectors = Vectors(x, labels, torch.arange(60))
    assert float(fit_linear(vectors, 2, (0.1,))[0].losses(vectors).mean()) < 0.1
    assert cross_validate(vectors, 2).loss > 0.67
    assert cross_validate(made_up(60), 3).loss < math.log(3)


def test_vectors_are_what_the_last_map_is_given(bert, moods, tmp_path):
    run = weft.train("classification", moods, tmp_path / "run", base=bert, steps=1, set=FAST)
    split = run.task.read([str(moods)], tmp_path)
    vectors = read_vectors(run.task, run.module, split)
    assert vectors.x.shape == (48, 42) and vectors.owners.tolist() == list(range(48))
    set_last_map(run.module, fit_linear(vectors, 2, (10.0,))[0])
    assert run.task.measure(run.module, split, 97)["loss"] == pytest.approx(
        float(fit_linear(vectors, 2, (10.0,))[0].losses(vectors).mean()), abs=1e-5
    )


# --- the choice ------------------------------------------------------------------------------------------------------


def record_of(folder):
    return TrainingPlan.from_tree(RunFolder(folder).read_plan()).head


def frozen(run, base):
    own, theirs = RunFolder(run.folder).read_model(), RunFolder(base).read_model()
    return all(torch.equal(own[name], theirs[name]) for name in theirs if name in own and not name.startswith("head."))


@pytest.mark.parametrize("gain", [0.4, -0.4])
def test_all_weights_are_trained_where_that_is_better(bert, moods, tmp_path, monkeypatch, gain):
    nats = head_choice._nats

    def trial(self, train, fitted):
        held = read_vectors(self.setup.prepared.task, self.module, train.pick(range(4, len(train), 5)))
        return nats(fitted, held) - gain + np.linspace(-0.1, 0.1, len(held.labels)), 11

    monkeypatch.setattr(HeadChoice, "_trial", trial)
    notes = Notes()
    run = weft.train("classification", moods, tmp_path / "run", base=bert, minutes=0.04, set=FAST, reporter=notes)
    found = record_of(run.folder)
    assert found.gain == pytest.approx(gain) and found.tried == 11 and found.frozen == (gain < 0)
    assert frozen(run, bert) == (gain < 0)
    [line] = [note for note in notes.heard if note == found.describe()]
    assert ("frozen body" in line) == (gain < 0) and ("lower by 0.400" in line) == (gain > 0)
    assert run.evaluate(moods)["accuracy"] > 0.7


def test_a_real_trial_leaves_nothing_behind(bert, moods, tmp_path):
    run = weft.train("classification", moods, tmp_path / "run", base=bert, minutes=0.05, set=FAST)
    found = record_of(run.folder)
    assert found.tried >= 1 and found.error is not None and not (run.folder / head_choice.TRIAL).exists()


def test_a_training_that_diverges_is_no_choice(bert, moods, tmp_path, monkeypatch):
    def diverges(self):
        raise TrainingError("step 1: the gradient is not finite")

    monkeypatch.setattr(Loop, "one_step", diverges)
    run = weft.train("classification", moods, tmp_path / "run", base=bert, minutes=0.04, set=FAST)
    assert record_of(run.folder).frozen and "diverged" in record_of(run.folder).describe()


@pytest.mark.parametrize(
    "more", [{"minutes": 0.03, "set": FAST | {"training.head": "none"}}, {"steps": 2, "set": FAST},
             {"minutes": 0.03, "set": FAST | {"training.lora": 2}}],
)  # fmt: skip
def test_nothing_is_chosen(bert, moods, tmp_path, more):
    assert record_of(weft.train("classification", moods, tmp_path / "run", base=bert, **more).folder) is None


def test_a_linear_head_as_asked_without_minutes(bert, moods, tmp_path):
    run = weft.train(
        "classification", moods, tmp_path / "run", base=bert, steps=9, set=FAST | {"training.head": "linear"}
    )
    found = record_of(run.folder)
    assert found.asked and found.frozen and frozen(run, bert)
    rows = [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [0, 0]  # an evaluation and the metrics


def test_all_weights_start_from_a_fitted_layer_as_asked(bert, moods, tmp_path):
    start = FAST | {"training.head": "start", "training.rate": 1e-12, "training.weight_decay": 0.0, "training.ema": 0.0}
    linear = FAST | {"training.head": "linear"}
    runs = [
        weft.train("classification", moods, tmp_path / name, base=bert, steps=2, set=changes)
        for name, changes in (("start", start), ("linear", linear))
    ]
    one, other = (RunFolder(run.folder).read_model()["head.linear.weight"] for run in runs)
    assert torch.allclose(one, other, atol=1e-6) and not record_of(runs[0].folder).frozen


def test_what_cannot_be_is_refused(bert, moods, tmp_path):
    linear = {"training.head": "linear"}
    with pytest.raises(WeftError, match="--from RUN"):
        weft.train("classification", moods, tmp_path / "a", minutes=0.02, set=linear)
    with pytest.raises(WeftError, match="without adapters"):
        weft.train(
            "classification", moods, tmp_path / "b", base=bert, minutes=0.02, set=FAST | linear | {"training.lora": 2}
        )


@pytest.mark.parametrize("killed", ["_choose", "checkpoint"])
def test_a_killed_choice_is_resumed_to_the_same_bits(bert, moods, tmp_path, monkeypatch, killed):
    linear = FAST | {"training.head": "linear"}
    whole = weft.train("classification", moods, tmp_path / "whole", base=bert, steps=9, set=linear)

    class Killed(Exception):
        pass

    def kill(self, *args, **more):
        raise Killed

    owner = HeadChoice if killed == "_choose" else Loop
    real = getattr(owner, killed)
    monkeypatch.setattr(owner, killed, kill)
    with pytest.raises(Killed):
        weft.train("classification", moods, tmp_path / "run", base=bert, steps=9, set=linear)
    monkeypatch.setattr(owner, killed, real)
    run = weft.train("classification", moods, tmp_path / "run", resume=True)
    own, other = RunFolder(run.folder).read_model(), RunFolder(whole.folder).read_model()
    assert all(torch.equal(own[name], other[name]) for name in other)
    again = weft.train("classification", moods, tmp_path / "run", resume=True)  # of a run that has ended
    assert torch.equal(RunFolder(again.folder).read_model()["head.linear.weight"], own["head.linear.weight"])
