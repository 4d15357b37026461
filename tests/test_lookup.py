"""Look-up, hard and soft: the functions, the film catalog, its picture and command, and the sample that trains it."""

from __future__ import annotations

import itertools
import json
import math

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from weft.cli.main import app
from weft.data.readers.files import DataError
from weft.data.samples import film_catalog, sample
from weft.data.samples.films import ATTRIBUTES, FILMS_LISTED, HALLS, MARGIN
from weft.foundation.errors import ShapeError, WeftError
from weft.inspection.pictures.look import observe, picture_of
from weft.inspection.pictures.look_options import LookOptions
from weft.inspection.pictures.lookup import look_up
from weft.parts.attention import PlainCrossAttention, cross_attention
from weft.parts.lookup import hard_lookup, soft_lookup
from weft.tasks.registry import task_named
from weft.training.reporting import Reporter
from weft.training.request import TrainRequest
from weft.training.train import run_training

CLOSE = 1e-10
T, S, D, V = 5, 7, 3, 11


@pytest.fixture
def store(double):
    return torch.randn(T, D), torch.randn(S, D), torch.randn(S, V)


def test_hard_lookup_takes_the_best_value_as_it_is(store):
    Q, K, values = store
    Y, A = hard_lookup(Q, K, values)
    for t in range(T):
        best = max(range(S), key=lambda s: float(Q[t] @ K[s]))
        assert torch.equal(Y[t], values[best]) and A[t].tolist() == [float(s == best) for s in range(S)]


def test_soft_lookup_is_the_formula_and_ends_in_the_hard_one_and_the_mean(store):
    Q, K, values = store
    Y, A = soft_lookup(Q, K, values, temperature=0.7)
    for t in range(T):
        e = [math.exp(float(Q[t] @ K[s]) / 0.7) for s in range(S)]
        assert A[t].tolist() == pytest.approx([one / sum(e) for one in e], abs=CLOSE)
        assert Y[t].tolist() == pytest.approx(
            sum(one / sum(e) * values[s] for s, one in enumerate(e)).tolist(), abs=CLOSE
        )
    assert torch.allclose(soft_lookup(Q, K, values, 1e-4)[0], hard_lookup(Q, K, values)[0], atol=CLOSE)
    assert torch.allclose(soft_lookup(Q, K, values, 1e12)[0], values.mean(0).expand(T, V), atol=CLOSE)
    attended, _ = cross_attention(Q, torch.cat((K, values), 1), torch.eye(D + V)[:, :D], torch.eye(D + V)[:, D:])
    assert torch.allclose(soft_lookup(Q, K, values, math.sqrt(D))[0], attended, atol=CLOSE)


def test_only_soft_lookup_has_a_gradient(store):
    Q, K, values = store
    Q.requires_grad_()
    soft_lookup(Q, K, values)[0].sum().backward()
    assert bool((Q.grad != 0).any()) and not hard_lookup(Q, K, values)[0].requires_grad


def test_wrong_stores_are_named(store):
    Q, K, values = store
    with pytest.raises(ShapeError, match="queries of 3 numbers and keys of 11 cannot be compared"):
        soft_lookup(Q, values, values)
    with pytest.raises(ShapeError, match="7 keys and 5 values"):
        hard_lookup(Q, K, Q)
    with pytest.raises(ShapeError, match="0 keys and 0 values"):
        hard_lookup(Q, K[:0], values[:0])
    for temperature in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(WeftError, match="give a number above 0"):
            soft_lookup(Q, K, values, temperature)


def test_the_catalog_is_a_function_of_its_seed():
    one, again, other = film_catalog(9, seed=3), film_catalog(9, seed=3), film_catalog(9, seed=4)
    assert one.names == again.names and np.array_equal(one.keys, again.keys)
    assert one.names != other.names and len(set(one.names)) == 9
    assert one.keys.shape == (9, len(ATTRIBUTES)) and np.abs(one.keys).max() <= 1
    with pytest.raises(DataError, match="a catalog of 197 films: choose 1 to 196"):
        film_catalog(197)


def test_a_wish_is_looked_up_hard_and_soft():
    catalog = film_catalog()
    found = look_up(catalog, {"romance": 0.9, "action": -0.5}, temperature=0.5)
    scores = 0.9 * catalog.keys[:, 0] - 0.5 * catalog.keys[:, 1]
    assert found.scores == pytest.approx(scores) and found.best == catalog.names[int(scores.argmax())]
    assert found.hard[0].tolist() == catalog.values[scores.argmax()].tolist()
    shares = np.exp(scores / 0.5) / np.exp(scores / 0.5).sum()
    assert found.soft[1] == pytest.approx(shares) and found.soft[0] == pytest.approx(shares @ catalog.values)
    bars, steps = found.picture().panels
    assert bars.axes()[0].options == ("hard", "0.1", "0.2", "0.5", "1", "2", "5") and bars.shown() == "0.5"
    assert bars.values[0].tolist() == [1.0] + [0.0] * 7 and bars.values[3].tolist() == pytest.approx(
        sorted(shares)[::-1]
    )
    by_name = {step.name: step.values for step in steps.steps}
    assert by_name["weighted values"] == pytest.approx(shares[:, None] * catalog.values)
    assert by_name["answers"] == pytest.approx(np.stack([found.hard[0], found.soft[0]]))
    assert "hard look-up gives" in str(found).lower()


def test_the_command_looks_up_and_draws(tmp_path, capsys):
    def call(*words):
        with pytest.raises(SystemExit) as stopped:
            app(["lookup", *words], prog_name="weft")
        return stopped.value.code or 0, *capsys.readouterr()

    out = tmp_path / "look.html"
    code, printed, _ = call("romance=0.9", "action=-0.5", "--films", "5", "--out", str(out), "--json")
    tree = json.loads(printed)
    assert code == 0 and tree["best"] in out.read_text(encoding="utf-8")
    assert sum(film["soft"] for film in tree["films"]) == pytest.approx(1) and len(tree["films"]) == 5
    assert max(tree["films"], key=lambda film: film["score"])["film"] == tree["best"]
    assert "4. scores and weights" in call("comedy=1", "--out", str(tmp_path / "look.svg"))[1]
    for words, sentence in (
        (("romance",), "'romance' is no wish: write a name and a number"),
        (("=",), "'=' is no wish"),
        (("tears=1",), "films have no attribute 'tears': wish for romance"),
        (("romance=inf",), "give finite numbers"),
        (("romance=1", "--temperature", "0"), "give a number above 0"),
    ):
        code, _, errors = call(*words, "--out", str(tmp_path / "no.html"))
        assert code == 2 and sentence in errors and errors.count("\n") == 1
    assert not (tmp_path / "no.html").exists()


def as_tensors(part):
    return torch.from_numpy(np.stack(part.values)), torch.from_numpy(part.labels)


def test_the_answer_of_each_example_is_the_hall_of_the_best_film():
    found = sample("films", size=90)
    width = len(ATTRIBUTES)
    for values, label in zip(found.train.values, found.train.labels, strict=True):
        wish, films = values[0], values[1:]
        scores = np.sort(films[:, :width].astype(np.float64) @ wish[:width])
        assert films.shape == (FILMS_LISTED, width + len(HALLS) + 1) and scores[-1] - scores[-2] >= MARGIN - 1e-6
        best = films[int((films[:, :width] @ wish[:width]).argmax())]
        assert int(best[width:-1].argmax()) == label and wish[-1] == 1 and not films[:, -1].any()
        assert (films[:, width:-1].sum(1) == 1).all() and not wish[width:-1].any()
    draws = itertools.product(range(len(HALLS)), repeat=FILMS_LISTED)
    shares = [max(draw.count(hall) for hall in range(len(HALLS))) / FILMS_LISTED for draw in draws]
    assert found.shortcut.value == pytest.approx(np.mean(shares)) and found.best.value == 1


def test_one_cross_attention_learns_to_look_up():
    found = sample("films", size=900)
    (x, y), (held, truth) = as_tensors(found.train), as_tensors(found.validation)
    part = PlainCrossAttention(x.shape[-1], x.shape[-1], len(HALLS))
    optimizer = torch.optim.Adam(part.parameters(), 0.05)
    for _ in range(150):
        loss = cross_entropy(part(x[:, :1], x[:, 1:])[:, 0], y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    said = part(held[:, :1], held[:, 1:])[:, 0].argmax(-1)
    assert float((said == truth).double().mean()) > 0.93 > 2 * found.shortcut.value


def test_the_preset_of_one_attention_learns_it_by_the_command(tmp_path, monkeypatch):
    monkeypatch.setattr("weft.tasks.task.sample", lambda name, seed: sample(name, seed, 900))
    changes = {"training.threads": 1, "training.guard": False}
    request = TrainRequest(
        "sequences", ("sample:films",), tmp_path / "run", preset="lookup", steps=160, changes=changes
    )
    found = run_training(request, Reporter())
    assert found.leak is None and found.metrics["accuracy"] > 0.9
    assert sum(type(part).__name__ == "SelfAttention" for part in found.run.module.modules()) == 1


def test_films_are_not_bent_in_time(monkeypatch, tmp_path):
    monkeypatch.setattr("weft.tasks.task.sample", lambda name, seed: sample(name, seed, 20))
    kind = task_named("sequences")
    changes = {
        name: kind.prepare([f"sample:{name}"], kind.Options(), 0, tmp_path).train.changes for name in ("films", "tones")
    }
    assert changes["films"] == () and "warp" in changes["tones"]


def test_the_picture_says_that_the_wish_looks(tmp_path, monkeypatch):
    monkeypatch.setattr("weft.tasks.task.sample", lambda name, seed: sample(name, seed, 20))
    changes = {"training.threads": 1, "training.guard": False}
    titles = {}
    for preset in ("lookup", "encoder"):
        data = ("sample:films",)
        request = TrainRequest("sequences", data, tmp_path / preset, preset=preset, steps=1, changes=changes)
        observation = observe(run_training(request, Reporter()).run, "sample:films/1")
        titles[preset] = picture_of(observation, LookOptions()).panels[0].title
    assert titles["lookup"].endswith("by the first one") and titles["encoder"].endswith("by the class token")
