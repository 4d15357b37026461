"""Task forecast: from a .csv to forecasts with bands; splits, windows, scales, references, samples, errors."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributions import StudentT

import weft
from weft.data import samples
from weft.data.readers.files import DataError
from weft.foundation.errors import SpecError, WeftError
from weft.models.presets import preset
from weft.models.series import SeriesSpec
from weft.parts.outputs import ForecastHead
from weft.tasks.forecast import ForecastOptions, ForecastTask
from weft.tasks.support.evaluation.baselines import naive_forecast
from weft.tasks.support.forecast_bands import half_band
from weft.tasks.support.losses import mean_loss
from weft.tasks.support.splits.series_windows import LEAST_SPREAD, WindowSplit, simple_errors, window_scale
from weft.tasks.task import GenerationOptions, Size
from weft.training.reporting import Reporter
from weft.training.request import TrainRequest
from weft.training.train import run_training

SMALL = {
    "width": 16, "layers": 2, "mixer": [{"kind": "convolution", "kernel": 5}, {"kind": "attention", "heads": 2}],
    "dropout": 0.0, "training.batch": 128, "training.threads": 1, "training.guard": False,
}  # fmt: skip
SHORT = {"data.horizon": 6, "data.context": 20, "data.patch": 4}


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path / "cache"))


def waves(rows=240, seed=0):
    """Two columns of very different scales that rise and fall every 12 rows."""
    random = np.random.default_rng(seed)
    t = np.arange(rows)
    wave = np.sin(2 * np.pi * t / 12)
    return np.stack((5 + wave, 3000 + 400 * wave), 1) + random.normal(0, (0.05, 20), (rows, 2))


def write_csv(path, values, names=("load", "flow")):
    rows = [",".join(("date", *names)), *(f"d{n}," + ",".join(map(repr, row)) for n, row in enumerate(values.tolist()))]
    path.write_text("\n".join(rows) + "\n")
    return path


def prepared(tmp_path, **options):
    path = write_csv(tmp_path / "a.csv", waves())
    chosen = ForecastOptions(**{"horizon": 6, "context": 20, "patch": 4, **options})
    return ForecastTask.prepare([str(path)], chosen, 0, tmp_path)


# --- from files to forecasts ---


@pytest.mark.parametrize("channels", ["independent", "joint"])
def test_a_series_is_learned_judged_saved_and_continued(tmp_path, channels):
    path = write_csv(tmp_path / "a.csv", waves())
    wishes = {**SMALL, **SHORT, "data.channels": channels, "training.rate": 0.01, "data.split": "160/40/40"}
    request = TrainRequest("forecast", (str(path),), tmp_path / "run", changes=wishes, steps=60)
    done = run_training(request, Reporter())
    assert done.metrics["mse"] < 0.5 * done.references["naive"] and 0 < done.references["ridge"] < 1
    assert done.metrics["mae"] < math.sqrt(done.metrics["mse"]) and 0.3 < done.metrics["coverage"] <= 1
    assert done.run.module.spec.channels == (2 if channels == "joint" else 1)
    answer = done.run.answer([str(path)])[0].to_tree()
    assert json.loads(json.dumps(answer)) == answer
    assert list(answer["output"]) == ["load", "flow"] and len(answer["output"]["load"]) == 6
    assert min(answer["output"]["load"]) > 3.5 and min(answer["output"]["flow"]) > 2000
    for name in ("load", "flow"):
        low, point, high = (np.array(answer[key][name]) for key in ("low", "output", "high"))
        assert (low < point).all() and (point < high).all()
    again = weft.load(tmp_path / "run")
    assert again.predict(str(path)) == answer["output"] == again.predict(path)
    assert again.predict([waves()])[0]["load"] == pytest.approx(answer["output"]["load"])
    judged = again.evaluate(path)
    assert judged["windows"] == 35 and set(judged) > {"mse", "mae", "loss", "coverage", "naive_mse", "ridge_mse"}
    assert judged["rmse_by_column"]["flow"] > 50 * judged["rmse_by_column"]["load"]


def test_what_was_held_out_is_judged_and_other_files_whole(tmp_path):
    path = write_csv(tmp_path / "a.csv", waves())
    run = weft.train("forecast", path, tmp_path / "run", steps=3, set={**SMALL, **SHORT})
    # The same numbers under another name are still those of the training: only what was held out counts.
    copy = write_csv(tmp_path / "copy.csv", waves())
    assert run.evaluate(copy)["windows"] == 24 - 6 + 1
    other = write_csv(tmp_path / "other.csv", waves(100, seed=1))
    judged = run.evaluate(other)
    assert judged["windows"] == 100 - 20 - 6 + 1 and "ridge_mse" not in judged
    assert judged["naive_mse"] == pytest.approx(run.evaluate([other])["naive_mse"])


def test_columns_validation_files_and_points(tmp_path):
    path = write_csv(tmp_path / "a.csv", waves())
    held = write_csv(tmp_path / "b.csv", waves(60, seed=3))
    wishes = {**SMALL, **SHORT, "data.columns": "flow", "data.validation": str(held), "distribution": "point"}
    request = TrainRequest("forecast", (str(path),), tmp_path / "run", changes=wishes, steps=3)
    done = run_training(request, Reporter())
    assert done.metrics["windows"] == 60 - 26 + 1 and "coverage" not in done.metrics
    assert done.metrics["loss"] == pytest.approx(done.metrics["mse"], rel=1e-5)
    answer = done.run.answer([path])[0]
    assert list(answer.output) == ["flow"] and not answer.more
    # All rows were learned from, so there is no held-out part: the file is judged whole.
    assert done.run.evaluate(path)["windows"] == 240 - 26 + 1


def test_a_model_of_one_patch_rolls_on(tmp_path):
    found = prepared(tmp_path)
    spec = found.task.default_model(Size(16, 2)).replace(ahead=1)
    module = weft.build(spec, seed=1).eval()
    batch = found.validation.batch([0, 1, 2])
    history = batch.inputs["history"]
    rolled = found.task.forecast(module, history)
    first = found.task.forecast(module, history).point[:, :4]
    on = torch.cat((history, first), 1)[:, -20:]
    second = found.task.forecast(module, on).point[:, :2]
    torch.testing.assert_close(rolled.point, torch.cat((first, second), 1))
    half = (rolled.high - rolled.low) / 2
    assert (half[:, 4:] > half[:, 3:4]).all(), "what follows a guess is less certain than the guess"
    whole = found.task.fit(spec)
    assert whole.ahead == 2 and found.task.forecast(weft.build(whole), history).point.shape == (3, 6, 1)
    loss = found.task.loss(module, batch)
    assert loss.count == batch.labels.numel() and math.isfinite(loss.mean.item())


# --- windows ---


def test_parts_do_not_overlap_and_histories_may_reach_back(tmp_path):
    found = prepared(tmp_path, split="150/50/40")
    train, validation = found.train, found.validation
    test = found.task.read([str(tmp_path / "a.csv")], tmp_path)
    assert (train.first, train.end, validation.first, validation.end) == (20, 150, 150, 200)
    assert (test.first, test.end, test.known) == (200, 240, 150)
    values = found.task.known.scaled(waves()[:150])
    np.testing.assert_allclose(values.mean(0), 0, atol=1e-12)
    np.testing.assert_allclose(values.std(0), 1)
    np.testing.assert_allclose(found.task.known.unscaled(values), waves()[:150])
    first = validation.batch([0, 1])
    expected = found.task.known.scaled(waves())[130:156].T
    np.testing.assert_allclose(first.inputs["history"][..., 0], expected[:, :20], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(first.labels[..., 0], expected[:, 20:], rtol=1e-5, atol=1e-6)
    last = train.batch([len(train) - 1])
    np.testing.assert_allclose(last.labels[0, :, 0], values[144:, 1], rtol=1e-5, atol=1e-6)


@settings(max_examples=25, deadline=None)
@given(
    rows=st.integers(30, 60), columns=st.integers(1, 3), size=st.integers(1, 400),
    channels=st.sampled_from(["independent", "joint"]), seed=st.integers(0, 3), epoch=st.integers(0, 3),
)  # fmt: skip
def test_batches_are_pure_functions_and_hold_every_window_once(rows, columns, size, channels, seed, epoch):
    values = torch.arange(rows * columns, dtype=torch.float32).view(rows, columns)
    part = WindowSplit(values, 15, rows, 15, 4, 5, channels)
    assert len(part) == (rows - 15 - 4 + 1) * (columns if channels == "independent" else 1)
    judged = part.batches(size, None)
    assert sorted(e for batch in judged for e in batch) == list(range(len(part)))
    drawn = part.batches(size, seed, epoch)
    assert [list(b) for b in drawn] == [list(b) for b in part.batches(size, seed, epoch)]
    assert len(drawn) == len(part.batches(size, seed, epoch + 1))
    flat = [e for batch in drawn for e in batch]
    assert len(set(map(len, drawn))) == 1, "every step learns from as many windows"
    assert len(set(flat)) == len(flat) and max(map(len, drawn)) <= max(1, size // 3)
    batch = part.batch(drawn[0], seed, epoch)
    joined = torch.cat((batch.inputs["history"], batch.labels), 1)
    assert ((joined[:, 1:] - joined[:, :-1]) == columns).all(), "rows follow each other"
    assert batch.tokens == 3 * len(drawn[0])


def test_windows_are_cut_to_the_model(tmp_path):
    part = prepared(tmp_path).validation
    cut = part.cut(3)
    assert cut.context == 12 and cut.windows == part.windows and part.cut(99) is not part
    torch.testing.assert_close(cut.batch([5]).labels, part.batch([5]).labels)
    torch.testing.assert_close(cut.batch([5]).inputs["history"], part.batch([5]).inputs["history"][:, -12:])


def test_defaults_fit_the_series(tmp_path):
    known = ForecastTask.prepare(["sample:seasonal"], ForecastOptions(), 0, tmp_path).task.known
    assert (known.context, known.patch) == (336, 24)
    path = write_csv(tmp_path / "short.csv", waves(60))
    known = ForecastTask.prepare([str(path)], ForecastOptions(horizon=5), 0, tmp_path).task.known
    assert known.context % known.patch == 0 and 10 <= known.context <= 25
    known = ForecastTask.prepare([str(path)], ForecastOptions(horizon=5, context=13, patch=4), 0, tmp_path).task.known
    assert known.context == 12


# --- what the numbers mean ---


def test_a_forecast_moves_and_stretches_with_its_history(tmp_path):
    found = prepared(tmp_path)
    module = weft.build(found.task.default_model(Size(16, 2)), seed=2).eval()
    history = torch.randn(3, 20, 1)
    one, other = found.task.forecast(module, history), found.task.forecast(module, 5 * history + 7)
    torch.testing.assert_close(other.point, 5 * one.point + 7, rtol=0.002, atol=0.002)
    torch.testing.assert_close(other.high - other.low, 5 * (one.high - one.low), rtol=0.002, atol=0.002)
    center, spread = window_scale(torch.full((1, 20, 1), 4.0))
    assert float(center) == 4 and float(spread) == pytest.approx(LEAST_SPREAD)


def test_company_does_not_change_a_forecast(tmp_path):
    found = prepared(tmp_path)
    module = weft.build(found.task.default_model(Size(16, 2)), seed=2).double().eval()
    history = found.validation.batch(range(7)).inputs["history"].double()
    together, alone = found.task.forecast(module, history), found.task.forecast(module, history[4:5])
    torch.testing.assert_close(together.point[4:5], alone.point, rtol=1e-10, atol=1e-10)


def test_a_short_history_is_read_in_whole_patches(tmp_path):
    found = prepared(tmp_path)
    module = weft.build(found.task.default_model(Size(16, 2)))
    rows = waves()
    eleven, eight = (found.task.predict(module, [rows[-n:]], GenerationOptions())[0] for n in (11, 8))
    assert eleven.output == eight.output
    with pytest.raises(DataError, match="3 rows of history, but the model reads patches of 4"):
        found.task.predict(module, [rows[-3:]], GenerationOptions())


def test_metrics_are_those_of_all_windows(tmp_path):
    found = prepared(tmp_path, split="150/90")
    module = weft.build(found.task.default_model(Size(16, 2)), seed=3).eval()
    part = found.validation
    batch = part.batch(range(len(part)))
    found_all = found.task.forecast(module, batch.inputs["history"])
    error = found_all.point - batch.labels
    measured = found.task.measure(module, part, 64)
    assert measured["mse"] == pytest.approx(float(error.square().mean()), rel=1e-5)
    assert measured["mae"] == pytest.approx(float(error.abs().mean()), rel=1e-5)
    within = (found_all.low <= batch.labels) & (batch.labels <= found_all.high)
    assert measured["coverage"] == pytest.approx(float(within.double().mean()))
    assert measured["loss"] == pytest.approx(mean_loss(found.task, module, part, 1000), rel=1e-5)
    own = error[::2].square().mean().sqrt() * found.task.known.deviation[0]
    assert measured["rmse_by_column"]["load"] == pytest.approx(float(own), rel=1e-5)
    joint = prepared(tmp_path, split="150/90", channels="joint")
    module = weft.build(joint.task.default_model(Size(16, 2)), seed=3).eval()
    other = joint.task.measure(module, joint.validation, 64)
    batch = joint.validation.batch(range(len(joint.validation)))
    error = joint.task.forecast(module, batch.inputs["history"]).point - batch.labels
    own = error.square().mean((0, 1)).sqrt() * torch.tensor(joint.task.known.deviation)
    assert list(other["rmse_by_column"].values()) == pytest.approx(own.tolist(), rel=1e-5)
    assert other["mse"] == pytest.approx(float(error.square().mean()), rel=1e-5)
    assert other["naive_mse"] == pytest.approx(measured["naive_mse"])


def test_references_are_the_last_value_and_a_regression(tmp_path):
    found = prepared(tmp_path)
    part = found.validation
    batch = part.batch(range(len(part)))
    naive = naive_forecast(batch.inputs["history"].numpy(), 6) - batch.labels.numpy()
    references = found.task.references(found.train, part)
    assert references["naive"] == pytest.approx(float(np.square(naive).mean()), rel=1e-5)
    assert references["ridge"] < 0.1 * references["naive"]
    assert simple_errors(part).keys() == {"naive"}


def test_the_loss_is_a_density_of_the_scaled_numbers(tmp_path):
    found = prepared(tmp_path)
    module = weft.build(found.task.default_model(Size(16, 2)).replace(distribution="gaussian"), seed=3).eval()
    batch = found.validation.batch([0, 3])
    forecast = found.task.forecast(module, batch.inputs["history"])
    scale = (forecast.high - forecast.point) / 1.2815515655446004
    expected = -torch.distributions.Normal(forecast.point, scale).log_prob(batch.labels).mean()
    torch.testing.assert_close(found.task.loss(module, batch).mean.detach(), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("freedom", [2.0, 3.0, 7.0, 50.0])
def test_the_band_holds_four_fifths(freedom):
    head = ForecastHead(4, 1, "student")
    raw = torch.tensor([0.0, 1.0, math.log(math.expm1(max(freedom - 2, 1e-6)))])
    drawn = StudentT(freedom, 0.0, head.distribution(raw).scale).sample((400_000,))
    share = float((drawn.abs() <= half_band(head, raw)).double().mean())
    assert share == pytest.approx(0.8, abs=0.004)


# --- samples ---


@pytest.mark.parametrize("name", ["seasonal", "brownian", "brownian3d"])
@pytest.mark.parametrize("horizon", [24, 7])
def test_samples_and_their_best(tmp_path, name, horizon):
    options = ForecastOptions(horizon=horizon, context=48, patch=12)
    found = ForecastTask.prepare([f"sample:{name}"], options, 1, tmp_path)
    truth = samples.sample(name, 1)
    assert found.validation.windows == len(truth.validation.values) - horizon + 1
    naive = simple_errors(found.validation)["naive"]
    if name == "seasonal":
        assert naive > 2 * found.best.value
        expected = (truth.validation.expected - found.task.known.mean) / found.task.known.deviation
        targets = found.validation.values[found.validation.first :].numpy()
        assert float(np.square(targets - expected).mean()) == pytest.approx(found.best.value, rel=0.1)
    else:
        assert abs(naive - found.best.value) < 4 * found.best.spread
    assert not found.best.beaten_by(naive) and found.best.beaten_by(0.3 * found.best.value)
    part = found.task.read([f"sample:{name}"], tmp_path)
    assert part.windows == found.validation.windows and torch.equal(part.values, found.validation.values)


def test_a_model_that_beats_the_best_is_reported(tmp_path, monkeypatch):
    wishes = {**SMALL, "data.context": 24, "data.patch": 12}
    request = TrainRequest("forecast", ("sample:brownian",), tmp_path / "fair", changes=wishes, steps=5)
    fair = run_training(request, Reporter())
    assert fair.leak is None and fair.metrics["mse"] < 1.5 * fair.best.value
    whole = ForecastTask._cut

    def leaking(self, values, number):
        part = whole(self, values, number)
        return WindowSplit(part.values * 0 + part.values[0], *[getattr(part, n) for n in (
            "first", "end", "context", "horizon", "patch", "channels")])  # fmt: skip

    monkeypatch.setattr(ForecastTask, "_cut", leaking)
    unfair = run_training(replace(request, out=tmp_path / "unfair"), Reporter())
    assert unfair.leak is not None and "something leaks" in unfair.leak


# --- models and errors ---


def test_every_preset_of_the_family_fits(tmp_path):
    found = prepared(tmp_path, channels="joint")
    spec = found.task.fit(preset("nano-series"))
    assert isinstance(spec, SeriesSpec)
    assert (spec.channels, spec.patch, spec.length, spec.ahead) == (2, 4, 5, 2)
    out = weft.build(spec)(found.validation.batch([0, 1]).inputs["history"])
    assert out.logits.shape == (2, 5, 2 * 4 * 2, 3)
    run = weft.train("forecast", tmp_path / "a.csv", tmp_path / "run", preset="nano-series", steps=1,
                     set={**SHORT, "training.guard": False})  # fmt: skip
    assert run.module.spec.width == 64


def test_a_glimpse_shows_forecast_and_truth(tmp_path):
    found = prepared(tmp_path)
    line = found.task.preview(weft.build(found.task.default_model(Size(16, 2))), found.validation)
    first = waves()[216, 0]
    assert line.startswith("load: +1 ") and f"(was {first:.4g})" in line and "+6 " in line


@pytest.mark.parametrize(
    ("options", "kind", "sentence"),
    [
        ({"context": 300}, DataError, "the training split has no window of 300 rows of history and 6 to forecast"),
        ({"split": "200/100"}, DataError, "the series has 240 rows, but data.split=200/100 needs 300"),
        ({"split": "200/3/37"}, DataError, "the validation split has no window"),
        ({"split": "240"}, SpecError, "a split is rows/rows or rows/rows/rows"),
        ({"split": "a/b"}, SpecError, "split"),
        ({"split": "9/9", "validation": "x.csv"}, DataError, "data.split and data.validation both"),
        ({"columns": "depth"}, DataError, "a.csv has no column 'depth': it has"),
        ({"horizon": 0}, SpecError, "horizon"),
        ({"channels": "both"}, SpecError, "channels"),
        ({"validation": "nowhere.csv"}, DataError, "there is no file nowhere.csv"),
    ],
)
def test_what_cannot_be_learned_is_refused_in_one_sentence(tmp_path, options, kind, sentence):
    with pytest.raises(kind, match=sentence):
        prepared(tmp_path, **options)


def test_what_cannot_be_judged_or_continued_is_refused(tmp_path):
    found = prepared(tmp_path)
    task = found.task
    short = write_csv(tmp_path / "short.csv", waves(25))
    with pytest.raises(DataError, match=r"short.csv has no window of 20 rows of history and 6 to forecast"):
        task.read([str(short)], tmp_path)
    other = write_csv(tmp_path / "other.csv", waves(50), names=("load", "depth"))
    with pytest.raises(DataError, match=r"other.csv has no column 'flow'"):
        task.read([str(other)], tmp_path)
    module = weft.build(task.default_model(Size(16, 2)))
    with pytest.raises(DataError, match="numbers of shape 30x3, but this model forecasts columns load, flow"):
        task.predict(module, [np.zeros((30, 3))], GenerationOptions())
    with pytest.raises(WeftError, match="task forecast has no sample 'dates'"):
        ForecastTask.prepare(["sample:dates"], ForecastOptions(), 0, tmp_path)
    empty = tmp_path / "empty.csv"
    empty.write_text("")
    with pytest.raises(DataError):
        ForecastTask.prepare([str(empty)], ForecastOptions(), 0, tmp_path)
    flat = write_csv(tmp_path / "flat.csv", np.ones((80, 2)))
    still = ForecastTask.prepare([str(flat)], ForecastOptions(horizon=6, context=20, patch=4), 0, tmp_path)
    assert still.task.measure(module, still.validation, 64)["naive_mse"] == 0
