"""Intervals and paired tests: against brute force, sacrebleu, and what is known in advance."""

from __future__ import annotations

import numpy as np
import pytest
import sacrebleu

from weft import WeftError
from weft.tasks.support.evaluation.example_scores import (
    bleu_statistic,
    error_rate_statistics,
    macro_f1_statistic,
    mean_statistic,
    text_scores,
)
from weft.tasks.support.evaluation.metrics import character_error_rate, macro_f1, word_error_rate
from weft.tasks.support.evaluation.references import describe_standing, losing_to
from weft.tasks.support.evaluation.resampling import MOST_UNITS, Statistic, interval, paired_test

WORDS = ["the", "a", "cat", "dog", "sat", "ran", "on", "under", "mat", "house", "old", "red"]


def texts(random, count):
    return [" ".join(random.choice(WORDS, size=random.integers(2, 11))) for _ in range(count)]


def test_the_interval_of_a_mean_is_the_one_known_from_theory():
    values = np.random.default_rng(3).normal(7.0, 2.0, size=997)
    low, high = interval(mean_statistic(values), resamples=2000)
    half = 1.96 * values.std() / np.sqrt(len(values))
    assert low == pytest.approx(values.mean() - half, abs=0.15 * half)
    assert high == pytest.approx(values.mean() + half, abs=0.15 * half)
    assert interval(mean_statistic(values)) == interval(mean_statistic(values))
    assert interval(mean_statistic(values), seed=1) != interval(mean_statistic(values))


def test_equal_examples_and_a_single_one_have_no_interval():
    assert interval(mean_statistic(np.ones(11))) is None and interval(mean_statistic([0.3])) is None


def test_bleu_of_sums_is_sacrebleus():
    random = np.random.default_rng(5)
    references, others = texts(random, 23), texts(random, 23)
    said = [reference if n % 3 else other for n, (reference, other) in enumerate(zip(references, others, strict=True))]
    statistic = bleu_statistic(said, references)
    for chosen in (range(23), random.integers(23, size=23), [0], [3, 3], range(0, 23, 3)):
        wanted = sacrebleu.corpus_bleu([said[n] for n in chosen], [[references[n] for n in chosen]], force=True).score
        assert float(statistic.value(statistic.rows[list(chosen)].sum(0))) == pytest.approx(wanted, abs=1e-9)
    several = [[reference, "a cat ran"] for reference in references]
    wanted = sacrebleu.corpus_bleu(said, [references, ["a cat ran"] * 23], force=True).score
    assert bleu_statistic(said, several).point == pytest.approx(wanted, abs=1e-9)
    assert bleu_statistic(["", "x"], ["a b c d e", "y"]).point == 0.0


def test_macro_f1_and_error_rates_of_sums_are_the_metrics():
    random = np.random.default_rng(7)
    truth = [random.integers(5, size=random.integers(1, 7)) for _ in range(31)]
    said = [np.where(random.random(len(row)) < 0.6, row, random.integers(5, size=len(row))) for row in truth]
    found = macro_f1_statistic(said, truth, 5)
    assert found.point == pytest.approx(macro_f1(np.concatenate(said), np.concatenate(truth)), abs=1e-12)
    assert macro_f1_statistic(said, truth, 10_000_000) is None
    a, b = texts(random, 13), texts(random, 13)
    rates = error_rate_statistics(a, b)
    assert rates["cer"].point == pytest.approx(character_error_rate(a, b), abs=1e-12)
    assert rates["wer"].point == pytest.approx(word_error_rate(a, b), abs=1e-12)


def test_a_paired_test_finds_what_is_there_and_no_more():
    random = np.random.default_rng(11)
    hard = random.normal(0.0, 5.0, size=211)
    one, same = hard + random.normal(0.0, 0.1, size=211), hard + random.normal(0.0, 0.1, size=211)
    # The examples vary far more than the models differ: only pairs can tell.
    better = paired_test(mean_statistic(one), mean_statistic(one + 0.05 + random.normal(0.0, 0.1, size=211)))
    assert better.p_value <= 0.01 and 0 < better.low < better.difference < better.high < 0.1
    equal = paired_test(mean_statistic(one), mean_statistic(same))
    assert equal.p_value > 0.05 and equal.low < 0 < equal.high and equal.examples == 211
    nothing = paired_test(mean_statistic(one), mean_statistic(one))
    assert nothing.difference == 0 and nothing.p_value == 1.0


def test_p_values_of_equal_models_are_spread_evenly():
    random = np.random.default_rng(13)
    values = [
        paired_test(
            mean_statistic(random.random(29) < 0.7), mean_statistic(random.random(29) < 0.7), resamples=199
        ).p_value
        for _ in range(200)
    ]
    assert 0.01 <= np.mean(np.array(values) <= 0.05) <= 0.09


def test_many_examples_are_put_together_without_loss():
    rows = np.random.default_rng(17).random((3 * MOST_UNITS + 7, 2))
    whole = Statistic(rows, lambda sums: sums[..., 0] / sums[..., 1])
    assert len(whole.grouped()) == MOST_UNITS and whole.grouped().point == pytest.approx(whole.point, abs=1e-12)


def test_what_is_no_pair_is_refused():
    with pytest.raises(WeftError, match="5 examples of one model and 7 of the other"):
        paired_test(mean_statistic(np.ones(5)), mean_statistic(np.ones(7)))


def test_scores_of_texts_hold_the_quality_of_each():
    found = text_scores({"bleu": 1.0}, ["a cat sat", "x y"], ["a cat sat", "a dog"], "ab".__getitem__)
    assert found.quality[0] > 99 > 5 > found.quality[1] and found.show(1) == "b"
    assert set(found.intervals()) <= {"bleu"} and found.statistics["exact_match"].point == 0.5


def test_a_model_that_loses_is_told_so():
    references = {"always O": 0.9256, "bag": 0.95}
    assert losing_to("accuracy", 0.926, references) == ["bag"]
    assert losing_to("mse", 0.5, {"naive": 0.5, "ridge": 0.7}) == ["naive"]
    hardly, loses = describe_standing("accuracy", 0.926, references, (0.91, 0.94))
    assert "hardly better" in hardly and "always O" in hardly and "0.9256" in hardly
    assert "LOSES TO" in loses and "bag" in loses
    assert "NO BETTER" in describe_standing("mse", 0.5, {"naive": 0.5})[0]
    assert describe_standing("accuracy", 0.99, references, (0.98, 1.0)) == []
