"""Samples of sets and proteins: what they are made of, their best scores, and models that suit them."""

import random
import re
from collections import Counter

import numpy as np
import pytest

import weft
from weft.cli.main import app
from weft.data.samples import sample
from weft.data.samples.proteins import AMINO_ACIDS, ProfileModel, family_models, family_posteriors
from weft.data.samples.sets import QUESTIONS, answer_to
from weft.tasks.classification import ClassificationOptions, ClassificationTask
from weft.tasks.task import GenerationOptions, Size


def parsed(text: str) -> tuple[str, tuple[int, ...]]:
    words = text.split()
    return words[0], tuple(map(int, words[1:]))


def test_sets_are_labeled_by_their_numbers_alone():
    found = sample("sets", size=900)
    assert not found.ordered and sample("sentiment", size=10).ordered
    for text, label in found.train + found.validation:
        question, numbers = parsed(text)
        expected = {"sum": sum(numbers), "maximum": max(numbers), "mode": Counter(numbers).most_common(1)[0][0]}
        assert label == str(expected[question]) and label in found.classes and len(numbers) == 6
        if question == "mode":
            assert list(Counter(numbers).values()).count(max(Counter(numbers).values())) == 1
    kinds = [{(question, tuple(sorted(numbers))) for question, numbers in map(parsed, dict(part))}
             for part in (found.train, found.validation)]  # fmt: skip
    assert not kinds[0] & kinds[1]  # in no order
    assert any(list(parsed(text)[1]) != sorted(parsed(text)[1]) for text, _ in found.train)
    answers = Counter((parsed(text)[0], label) for text, label in found.validation)
    most = [max(n for (asked, _), n in answers.items() if asked == question) for question in QUESTIONS]
    assert found.shortcut.value == pytest.approx(sum(most) / len(found.validation)) and found.best.value == 1.0


def test_the_model_of_the_sample_of_sets_has_no_positions(tmp_path):
    task = ClassificationTask.prepare(["sample:sets"], ClassificationOptions(), 0, tmp_path).task
    spec = task.default_model(Size(32, 2, 64))
    assert spec.declares().order_free and task.facts()["reading"] == "sets"
    assert {mixer.kind for mixer in spec.mixer} == {"attention"} and spec.positions.kind == "none"
    again = ClassificationTask.restore(task.options, task.facts(), None)
    assert again.default_model(Size(32, 2, 64)) == spec


def table(folder, rows) -> str:
    (folder / "rows.csv").write_text("text,label\n" + "".join(f"{text},{label}\n" for text, label in rows))
    return str(folder / "rows.csv")


def test_a_run_on_sets_is_free_of_order(tmp_path):
    asked = [row for row in sample("sets", size=1_200).train if row[0].startswith("maximum") and int(row[1]) > 4]
    options = {"width": 32, "layers": 1, "data.tokenizer": "sets", "training.batch": 512}
    run = weft.train("classification", table(tmp_path, asked), tmp_path / "run", steps=60, set=options)
    for subject in (run.module, weft.load(tmp_path / "run").module):
        (law,) = weft.laws.check(subject, laws=("permutation equivariance",)).findings
        assert law.verdict == "holds"
    texts = [text for text, label in sample("sets", seed=1, size=300).train if text.startswith("maximum")]
    choose = random.Random(5)
    moved = [" ".join(choose.sample(text.split(), len(text.split()))) for text in texts]
    assert all(one != two for one, two in zip(texts, moved, strict=True))
    answers = [run.task.predict(run.module, some, GenerationOptions()) for some in (texts, moved)]
    for one, two in zip(*answers, strict=True):
        shares = [list(answer.more["probabilities"].values()) for answer in (one, two)]
        assert one.output == two.output and np.allclose(*shares, atol=1e-5)
    right = [answer.output == str(answer_to(*parsed(text))) for text, answer in zip(texts, answers[0], strict=True)]
    assert np.mean(right) > 0.7


def test_an_ordinary_classifier_is_not_free_of_order(tmp_path):
    rows = table(tmp_path, [(f"a b c{n % 7}", n % 2) for n in range(40)])
    found = []
    for kind in ("auto", "sets"):
        options = {"width": 16, "layers": 1, "data.tokenizer": kind}
        found.append(weft.train("classification", rows, tmp_path / kind, steps=1, set=options).module.declares())
    assert [one.order_free for one in found] == [False, True]


def by_paths(model: ProfileModel, text: str) -> float:
    """p(text) as the sum over all sequences of states, one by one."""
    numbers = [AMINO_ACIDS.index(letter) for letter in text]

    def after(state: int, place: int) -> float:
        own = model.letters[state, numbers[place]]
        if place == len(text) - 1:
            return own * model.ends[state]
        onward = np.flatnonzero(model.steps[state])
        return own * sum(model.steps[state, other] * after(other, place + 1) for other in onward)

    return sum(model.start[state] * after(state, 0) for state in np.flatnonzero(model.start))


def test_profile_models_are_distributions_and_know_what_they_write():
    models = family_models(0)
    assert len(models) == 6
    for model in models.values():
        assert np.allclose(model.steps.sum(1) + model.ends, 1) and np.allclose(model.letters.sum(1), 1)
        assert np.isclose(model.start.sum(), 1)
    start, steps = np.array([1.0, 0.0]), np.array([[0.25, 0.5], [0.0, 0.4]])
    letters = np.zeros((2, 20))
    letters[0, :3], letters[1, 2:4] = (0.2, 0.5, 0.3), (0.9, 0.1)
    small = ProfileModel(start, steps, np.array([0.25, 0.6]), letters)
    texts = ["A", "AR", "RNN", "ARNN", "NNNNN", "ARAND"]
    expected = [by_paths(small, text) for text in texts]
    assert np.allclose(np.exp(small.log_likelihoods(texts)), expected, rtol=1e-10)
    written = Counter(small.write(20_000, np.random.default_rng(3)))
    for text in ("A", "N", "RN", "NN"):
        share = by_paths(small, text)
        assert abs(written[text] / 20_000 - share) < 4 * (share * (1 - share) / 20_000) ** 0.5


def test_the_best_score_of_proteins_is_that_of_bayes():
    found = sample("proteins", size=1_500)
    models = family_models(0)
    assert set(found.classes) == set(models) == {label for _, label in found.train}
    assert all(set(text) <= set(AMINO_ACIDS) for text, _ in found.train)
    texts, labels = zip(*found.train, strict=True)
    posteriors = family_posteriors(models, list(texts))
    right = np.array([found.classes[n] for n in posteriors.argmax(1)]) == np.array(labels)
    certain = posteriors.max(1)
    spread = np.sqrt((certain * (1 - certain)).sum()) / len(texts)
    assert abs(right.mean() - certain.mean()) < 4 * spread
    assert found.best.value == pytest.approx(certain.mean(), abs=0.03) and 0.85 < found.best.value < 0.995
    held = family_posteriors(models, [text for text, _ in found.validation])
    said = [found.classes[n] for n in held.argmax(1)]
    score = float(np.mean([one == label for one, (_, label) in zip(said, found.validation, strict=True)]))
    assert not found.best.beaten_by(score) and found.best.spread > 0
    # The right two motifs, in any order, and then a guess.
    pairs = np.mean([set(one[-2:]) == set(label[-2:]) for one, (_, label) in zip(said, found.validation, strict=True)])
    assert pairs / 2 == pytest.approx(found.shortcut.value, abs=0.04) and found.shortcut.value < 0.55
    assert sample("proteins", seed=1, size=20).train != sample("proteins", size=20).train


def test_proteins_are_read_by_their_letters(tmp_path):
    rows = table(tmp_path, sample("proteins", size=60).train)
    run = weft.train("classification", rows, tmp_path / "run", steps=2, set={"width": 16, "layers": 2})
    assert run.spec.facts["reading"] == "tokens" and len(run.tokenizer.encode("MKV")) == 3
    (answer,) = run.task.predict(run.module, ["MKVLAAGIVGLLLAQWERTY"], GenerationOptions())
    assert answer.output in run.task.classes
    assert sum(answer.more["probabilities"].values()) == pytest.approx(1, abs=1e-4)
    page = tmp_path / "look.html"
    with pytest.raises(SystemExit) as stopped:
        app(["look", str(tmp_path / "run"), "sample:proteins/3", "--out", str(page)], prog_name="weft")
    assert not stopped.value.code and sample("proteins").validation[3][0][:5] in _letters(page)


def _letters(page) -> str:
    """The letters of the tokens in a page, one after the other."""
    return "".join(re.findall(r'"([A-Z])"', page.read_text(encoding="utf-8")))
