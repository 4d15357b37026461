"""Calibration, abstaining, bands and confidences: right ones are called right, planted faults are found."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import weft
from weft.cli.main import app
from weft.foundation.errors import WeftError
from weft.inference.decoding.beam import Beam, beam_search
from weft.inference.decoding.generate import generate
from weft.inference.decoding.generated import GeneratedText
from weft.inference.decoding.request import GenerationRequest
from weft.tasks.support.abstention import ABSTAINS, withhold
from weft.tasks.support.evaluation.calibration import (
    Calibration,
    describe_correlation,
    describe_coverage,
    fit_temperature,
)
from weft.tasks.support.evaluation.example_scores import text_scores
from weft.tasks.support.evaluation.metrics import most_spearman, spearman
from weft.tasks.support.forecast_bands import Forecast, fit_band
from weft.tasks.support.splits.series_windows import WindowSplit
from weft.tasks.task import Answer

SMALL = {"width": 16, "layers": 2, "training.batch": 256, "training.threads": 1}


def drawn(confidence: np.ndarray, power: float = 1.0, seed: int = 0) -> Calibration:
    """Answers that are right as often as confidence ** power."""
    random = np.random.default_rng(seed)
    return Calibration(confidence, random.random(len(confidence)) < confidence**power)


SURE = np.random.default_rng(1).uniform(0.5, 1.0, 4001)


def test_calibration_error_by_hand():
    sure = np.array([0.6, 0.6, 0.9, 0.9])
    found = Calibration(sure, np.array([True, False, True, True]))
    assert [tuple(row) for row in found.table(2)] == [(2, pytest.approx(0.6), 0.5), (2, pytest.approx(0.9), 1.0)]
    assert found.error() == pytest.approx((0.4 + 0.6 + 0.1 + 0.1) / 4)  # fewer answers than bins: one each
    assert sum(row.answers for row in drawn(SURE).table()) == 4001
    assert {row.answers for row in drawn(SURE).table()} == {266, 267}


def test_an_overconfident_model_is_called_so():
    good, bad = drawn(SURE), drawn(SURE, 3.0)
    assert good.error() < 0.03 and bad.error() > 0.15
    assert good.error() == pytest.approx(good.error_by_chance(), abs=0.012)
    assert "as often right as they say" in good.describe()
    assert "OVERCONFIDENT" in bad.describe() and "OVERCONFIDENT" not in good.describe()
    assert "UNDERCONFIDENT" in drawn(SURE, 0.2).describe()
    half = np.concatenate([np.full(1000, 0.6), np.full(1000, 0.9)])
    turned = Calibration(half, np.arange(2000) % 10 < np.where(half < 0.7, 9, 6))
    assert "MISLEADING" in turned.describe()


def test_few_answers_are_not_blamed_for_chance():
    found = drawn(SURE[:31])
    assert found.error() > 0.1 and "as often right as they say" in found.describe()


def test_abstaining_leaves_the_probable_answers():
    found = Calibration(np.array([0.5, 0.7, 0.8, 0.95]), np.array([False, True, False, True]))
    assert tuple(found.abstain(0.75)) == (0.75, 2, 0.5, 0.5)
    assert tuple(found.abstain(0.99)) == (0.99, 0, 0.0, None)
    coverage, right = drawn(SURE).risk_coverage()
    assert coverage[-1] == 1.0 and right[-1] == pytest.approx(drawn(SURE).right.mean())
    assert right[0] > right[-1] + 0.1  # the surest are right more often


def logits_of(temperature: float, count: int = 3001) -> tuple[np.ndarray, np.ndarray]:
    """Logits [N, 5] and labels that follow softmax(logits / temperature)."""
    random = np.random.default_rng(7)
    logits = random.normal(size=(count, 5)) * 4
    shares = torch.from_numpy(logits / temperature).softmax(-1).numpy()
    labels = np.array([random.choice(5, p=row) for row in shares])
    return logits, labels


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_temperature_is_found(temperature):
    found = fit_temperature(*logits_of(temperature))
    assert found == pytest.approx(temperature, rel=0.12)


def test_temperature_stays_where_it_does_not_help():
    logits, labels = logits_of(3.0)
    assert fit_temperature(logits[:29], labels[:29]) == 1.0  # too few to tell
    assert fit_temperature(logits[:, :1], 0 * labels) == 1.0  # nothing to choose
    mixed = np.stack([logits_of(0.3, 400)[0][:, 0]] * 2, 1)  # both classes equally likely whatever the temperature
    assert fit_temperature(mixed, labels[:400] % 2) == 1.0


def test_no_mistake_is_no_certainty():
    logits = np.tile([[2.0, 0.0]], (50, 1))
    found = fit_temperature(logits, np.zeros(50, dtype=np.int64))
    assert 1 / (1 + math.exp(-2 / found)) == pytest.approx(1 - 0.5 / 52, abs=1e-3)


def test_bands_that_are_too_narrow_are_called_so():
    assert "TOO NARROW" in describe_coverage(0.61, 0.8, (0.55, 0.67))
    assert "TOO WIDE" in describe_coverage(0.95, 0.8, (0.93, 0.97))
    for ends in ((0.7, 0.85), None):
        assert "as promised" in describe_coverage(0.79, 0.8, ends)
    assert "HARDLY" in describe_correlation(0.1) and "HARDLY" not in describe_correlation(0.3)
    assert "tells" in describe_correlation(0.28, 0.3) and "0.30 is the most" in describe_correlation(0.28, 0.3)
    assert "HARDLY" in describe_correlation(0.05, 0.3) and "HARDLY" in describe_correlation(0.0, 0.0)


@pytest.mark.parametrize("equal", [1, 2, 7, 19, 20])
def test_the_most_that_ties_allow(equal):
    """Numbers without ties, in the order of the values: none correlate more."""
    values = np.array([5.0] * equal + list(range(10, 30 - equal)))
    assert most_spearman(values) == pytest.approx(spearman(np.arange(20), values) if equal < 20 else 0.0, abs=1e-12)


def test_bands_are_widened_until_they_hold_what_they_promise():
    values = torch.from_numpy(np.random.default_rng(5).normal(size=(4003, 1)))
    split, module = WindowSplit(values, 8, 4003, 8, 3, 4), torch.nn.Linear(1, 1)

    def narrow(half: float | None):
        def forecast(_, history):
            point = torch.zeros(len(history), 3, 1, dtype=torch.float64)
            return Forecast(point) if half is None else Forecast(point, point - half, point + half)

        return forecast

    assert fit_band(narrow(0.5), module, split) == pytest.approx(1.2816 / 0.5, rel=0.05)
    assert fit_band(narrow(3.0), module, split) == pytest.approx(1.2816 / 3.0, rel=0.05)
    assert fit_band(narrow(1.2816), module, split) == pytest.approx(1.0, rel=0.05)
    assert fit_band(narrow(None), module, split) == 1.0


def test_withheld_answers():
    label = Answer("x", "a", {"probabilities": {"a": 0.7, "b": 0.3}})
    assert withhold(label, 0.8).output == ABSTAINS and withhold(label, 0.7) == label
    tags = Answer("x y", ["N", "V"], {"tokens": ["x", "y"], "probabilities": [0.9, 0.4]})
    assert withhold(tags, 0.5).output == ["N", ABSTAINS]
    nodes = Answer("g", ["p", "q"], {"probabilities": [{"p": 0.6, "q": 0.4}, {"p": 0.1, "q": 0.9}]})
    assert withhold(nodes, 0.7).output == [ABSTAINS, "q"] and withhold(nodes, 0.7).more == nodes.more


def test_confidence_is_the_mean_over_tokens_and_the_stop_token():
    text = GeneratedText([1, 2], [math.log(0.5), math.log(0.25)], "stop", 0.0, stop_log_probability=math.log(0.125))
    assert text.confidence == pytest.approx(0.25)
    assert GeneratedText([], [], "length", 0.0).confidence == 1.0


@pytest.mark.parametrize(("stop", "reason"), [((), "length"), ((3,), "stop")])
def test_beam_and_greedy_search_agree_on_the_confidence(stop, reason):
    torch.manual_seed(3)
    # An untrained model with one embedding for both ends repeats its last token, 3.
    spec = weft.preset("nano-gpt").replace(vocabulary=11, width=16, layers=1, **{"mixer.heads": 2})
    model = weft.build(spec).double()
    request = GenerationRequest([[1, 2, 3]], max_tokens=7, stop=stop)
    greedy, [beam] = generate(model, request)[0], beam_search(model, request, Beam(1))[0]
    assert greedy.tokens == beam.tokens and greedy.finish_reason == beam.finish_reason == reason
    written = [*greedy.tokens, *stop]
    with torch.no_grad():
        logs = model(torch.tensor([[1, 2, 3, *written]])).logits[0, 2:-1].log_softmax(-1)
    wanted = math.exp(sum(float(logs[n, token]) for n, token in enumerate(written)) / len(written))
    assert greedy.confidence == pytest.approx(wanted, abs=1e-6)
    assert beam.confidence == pytest.approx(wanted, abs=1e-10)


def test_correlation_with_chrf():
    references = ["a red house", "two small dogs", "the old bridge", "green apples"]
    texts = ["a red house", "two small cats", "xyz", "green grapes"]
    scores = text_scores({}, texts, references, str, [0.9, 0.6, 0.1, 0.5])
    assert scores.metrics["confidence_correlation"] > 0.9 and "tells" in scores.describe_trust()
    turned = text_scores({}, texts, references, str, [0.1, 0.5, 0.9, 0.6])
    assert turned.metrics["confidence_correlation"] < 0 and "HARDLY" in turned.describe_trust()


@pytest.fixture(scope="module")
def moods(tmp_path_factory):
    """A run of two classes, told by one word; and the data."""
    folder = tmp_path_factory.mktemp("moods")
    rows = [f"{word} thing number {n}\t{label}" for n in range(60) for word, label in (("good", "pos"), ("bad", "neg"))]
    (folder / "a.tsv").write_text("text\tlabel\n" + "\n".join(rows) + "\n")
    run = weft.train("classification", folder / "a.tsv", folder / "run", steps=40, set={**SMALL, "data.held_out": 0.4})
    return run, folder


def test_a_run_abstains(moods):
    run, folder = moods
    [answer] = run.answer(["good thing"], abstain=0.51)
    assert answer.output in ("pos", ABSTAINS)
    assert run.predict("good thing", abstain=0.999999) == ABSTAINS
    found = run.evaluate(folder / "a.tsv", abstain=0.6)
    sure = run.answer([f"good thing number {n}" for n in range(60)] + [f"bad thing number {n}" for n in range(60)])
    given = sum(max(one.more["probabilities"].values()) >= 0.6 for one in sure)
    assert found["abstention"]["answered"] == given and found["abstention"]["coverage"] == pytest.approx(given / 120)
    assert sum(row["answers"] for row in found["reliability"]) == 120 and 0 <= found["ece"] <= 1
    assert "ece" in found and found["trust"]


def test_temperature_scales_every_probability_and_survives_the_folder(moods):
    run, _ = moods
    task = run.task
    before = task.temperature
    texts = ["good thing number 3", "bad thing number 5"]
    try:
        task.temperature = 1.0
        plain = [one.more["probabilities"]["pos"] for one in run.answer(texts)]
        task.temperature = 2.5
        warm = [one.more["probabilities"]["pos"] for one in run.answer(texts)]
        logit = [math.log(p / (1 - p)) for p in plain]
        assert [math.log(p / (1 - p)) for p in warm] == pytest.approx([one / 2.5 for one in logit], abs=1e-3)
        facts = task.facts()
        assert facts["temperature"] == 2.5
        assert type(task).restore(task.options, facts, task.tokenizer).temperature == 2.5
        del facts["temperature"]  # a run of an older version
        assert type(task).restore(task.options, facts, task.tokenizer).temperature == 1.0
    finally:
        task.temperature = before


def test_temperature_is_fitted_on_held_out_data_and_lowers_the_loss(moods):
    run, _ = moods
    stored = json.loads((run.folder / "spec.json").read_text())["facts"].get("temperature", 1.0)
    assert stored == run.task.temperature
    split = run.read([str(run.folder.parent / "a.tsv")])
    scaled = run.task.measure(run.module, split, 1024)["loss"]
    before = run.task.temperature
    try:
        run.task.temperature = 1.0
        assert stored == 1.0 or scaled < run.task.measure(run.module, split, 1024)["loss"]
    finally:
        run.task.temperature = before


def test_a_finished_run_with_a_temperature_resumes(moods, tmp_path):
    run, folder = moods
    changes = {**SMALL, "data.held_out": 0.4}
    again = weft.train("classification", folder / "a.tsv", run.folder, steps=40, set=changes, resume=True)
    assert again.task.temperature == run.task.temperature


def test_errors_in_one_sentence(moods):
    run, folder = moods
    for least in (0, 1, 1.5, -0.1, True, float("nan")):
        with pytest.raises(WeftError, match="between 0 and 1"):
            run.answer(["good"], abstain=least)
        with pytest.raises(WeftError, match="between 0 and 1"):
            run.evaluate(folder / "a.tsv", abstain=least)
    with pytest.raises(WeftError, match="does not go with shots"):
        run.evaluate(folder / "a.tsv", 2, abstain=0.5)
    dates = weft.load("sample:dates-run")
    with pytest.raises(WeftError, match="does not choose among classes"):
        dates.answer(["May 3 1987"], abstain=0.5)
    with pytest.raises(WeftError, match="does not choose among classes"):
        dates.evaluate("sample:dates", abstain=0.5, limit=3)


def test_on_the_command_line(moods):
    run, folder = moods
    call = CliRunner().invoke
    out = call(app, ["predict", str(run.folder), "good thing", "--abstain", "0.9999999"])
    assert out.exit_code == 0 and out.stdout.startswith("abstains (")
    out = call(app, ["eval", str(run.folder), str(folder / "a.tsv"), "--abstain", "0.6"])
    assert out.exit_code == 0 and "with --abstain 0.6:" in out.stdout and "probability   right   answers" in out.stdout
    assert "ECE" in out.stdout
    out = call(app, ["predict", "sample:dates-run", "the 3rd of May 1987", "--json"])
    assert 0 < json.loads(out.stdout)[0]["confidence"] <= 1


def test_confidence_of_dates_tells_right_from_wrong():
    found = weft.load("sample:dates-run").evaluate("sample:dates", limit=60)
    assert found["confidence_correlation"] >= 0.3 or found["exact_match"] > 0.97
    assert "Spearman" in found["trust"]
