"""Baselines: closed forms against direct solutions, and data whose answer is known."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch

from weft.foundation.errors import WeftError
from weft.tasks.support.evaluation import baselines
from weft.tasks.support.evaluation.baselines import BagOfBigrams, FrequentTag, RidgeForecast, naive_forecast


def noise(*shape: int) -> np.ndarray:
    return np.random.default_rng(7).normal(size=shape)


def windows(series: np.ndarray, context: int, horizon: int) -> tuple[np.ndarray, np.ndarray]:
    """[windows, steps, columns], split into history and target."""
    slid = np.lib.stride_tricks.sliding_window_view(series, context + horizon, axis=0).transpose(0, 2, 1)
    return slid[:, :context], slid[:, context:]


def test_naive_repeats_the_last_value():
    history = noise(5, 7, 3)
    forecast = naive_forecast(history, 11)
    assert forecast.shape == (5, 11, 3)
    assert (forecast == history[:, -1:, :]).all()


def test_ridge_is_the_direct_solution():
    series, context, horizon = noise(211, 3).cumsum(0), 7, 5
    fitted = RidgeForecast.fit(series, context, horizon)
    histories, targets = windows(series / series.std(0), context, horizon)
    last = histories[:, -1:]
    x = (histories - last).transpose(0, 2, 1).reshape(-1, context)
    y = (targets - last).transpose(0, 2, 1).reshape(-1, horizon)
    gram = x.T @ x
    direct = np.linalg.solve(gram + fitted.penalty * np.trace(gram) / context * np.eye(context), x.T @ y).T
    np.testing.assert_allclose(fitted.weights, direct, atol=1e-10)
    expected = np.stack([direct @ (series[:context, c] - series[context - 1, c]) for c in range(3)], 1)
    np.testing.assert_allclose(fitted.predict(series[None, :context])[0], expected + series[context - 1], atol=1e-10)


def test_ridge_penalty_is_the_best_on_the_last_fifth():
    series, context, horizon = noise(307, 2), 13, 3
    fitted = RidgeForecast.fit(series, context, horizon)
    histories, targets = windows(series / series.std(0), context, horizon)
    last = len(histories) - len(histories) // 5
    x, y = ((part - histories[:, -1:]).transpose(0, 2, 1) for part in (histories, targets))  # [windows, columns, steps]
    first = x[: last - horizon].reshape(-1, context)
    errors = {}
    for penalty in baselines.RIDGE_PENALTIES:
        gram = first.T @ first
        ridge = gram + penalty * np.trace(gram) / context * np.eye(context)
        weights = np.linalg.solve(ridge, first.T @ y[: last - horizon].reshape(-1, horizon))
        errors[penalty] = float(((x[last:] @ weights - y[last:]) ** 2).sum())
    assert fitted.penalty == min(errors, key=errors.__getitem__)
    assert len(set(errors.values())) == len(errors)


def test_ridge_penalty_is_not_chosen_on_targets_it_was_fitted_to(monkeypatch):
    parts, sums = [], baselines._Moments.of
    monkeypatch.setattr(baselines._Moments, "of", lambda *given: parts.append(given[-1]) or sums(*given))
    RidgeForecast.fit(noise(117, 2), 13, 5)
    assert parts == [range(75), range(75, 80), range(80, 100)]


def test_ridge_learns_waves_that_naive_does_not():
    times = np.arange(601)[:, None]
    series = np.sin(2 * np.pi * times / np.array([[11, 17, 23]])) + 0.01 * noise(601, 3)
    histories, targets = windows(series[400:], 53, 7)
    fitted = RidgeForecast.fit(series[:400], 53, 7)
    assert np.mean((fitted.predict(histories) - targets) ** 2) < 1e-3
    assert np.mean((naive_forecast(histories, 7) - targets) ** 2) > 0.5


def test_ridge_does_not_depend_on_the_columns_scale_or_level():
    series = noise(151, 3).cumsum(0)
    one = RidgeForecast.fit(series, 11, 5)
    other = RidgeForecast.fit(series * [1, 1000, 0.01] + [3, 5, 7], 11, 5)
    np.testing.assert_allclose(one.weights, other.weights, atol=1e-9)


def test_ridge_of_many_windows_uses_an_even_choice(monkeypatch):
    series = noise(997, 2).cumsum(0)
    every = baselines._Moments.of(series.T, 7, 3, range(900))
    monkeypatch.setattr(baselines, "MOST_WINDOWS", 500)
    monkeypatch.setattr(baselines, "ROWS_AT_ONCE", 13)
    some = baselines._Moments.of(series.T, 7, 3, range(900))
    assert every.rows == 2 * 900 and some.rows == 2 * 225


def test_ridge_of_a_short_series_is_nearly_naive():
    series = noise(13, 2).cumsum(0)
    fitted = RidgeForecast.fit(series, 7, 5)
    assert fitted.penalty == baselines.RIDGE_PENALTIES[-1]
    constant = RidgeForecast.fit(np.ones((29, 2)), 7, 5)
    assert (constant.predict(np.full((1, 7, 2), 4.0)) == 4).all()


def test_forecast_refusals():
    with pytest.raises(WeftError, match="shape 11x2 has no window of context 7 and horizon 5: give 12 rows"):
        RidgeForecast.fit(noise(11, 2), 7, 5)
    with pytest.raises(WeftError, match="a history of 5 rows, but the regression was fitted on 7"):
        RidgeForecast.fit(noise(53, 2), 7, 3).predict(noise(1, 5, 2))
    with pytest.raises(WeftError, match=r"shape 5x3, but \[n, context, C\] is needed"):
        naive_forecast(noise(5, 3), 7)


TEXTS = ["good film", "not good film", "bad film", "not bad film", "so so", "neither here nor there"] * 5
LABELS = ["yes", "no", "no", "yes", "perhaps", "perhaps"] * 5


def test_bigrams_tell_what_words_alone_cannot():
    model = BagOfBigrams.fit(TEXTS, LABELS)
    assert model.classes == ("no", "perhaps", "yes")
    assert model.predict(TEXTS[:6]) == LABELS[:6]
    assert model.predict(["NOT BAD", "it is so so ."]) == ["yes", "perhaps"]
    shares = model.probabilities(TEXTS[:5])
    torch.testing.assert_close(shares.sum(1), torch.ones(5, dtype=torch.float64))


def test_bag_of_bigrams_is_at_the_minimum():
    model = BagOfBigrams.fit(TEXTS, LABELS)
    weights, bias = model.weights.clone().requires_grad_(), model.bias.clone().requires_grad_()
    rows = torch.zeros(len(TEXTS), len(model.vocabulary), dtype=torch.float64)
    for number, text in enumerate(TEXTS):
        words = text.split()
        for piece in {*words, *(f"{a} {b}" for a, b in pairwise(words))}:
            rows[number, model.vocabulary[piece]] = model.rarity[model.vocabulary[piece]]
    rows = rows / rows.norm(dim=1, keepdim=True)
    truth = torch.tensor([model.classes.index(label) for label in LABELS])
    loss = torch.nn.functional.cross_entropy(rows @ weights + bias, truth)
    (loss + model.penalty / len(TEXTS) * weights.square().sum() / 2).backward()
    assert weights.grad.abs().max() < 1e-4 and bias.grad.abs().max() < 1e-4
    torch.testing.assert_close(model.probabilities(TEXTS), (rows @ weights + bias).softmax(1).detach())


def test_texts_without_a_known_word_get_the_classes_shares():
    texts, labels = [*TEXTS, "good"], [*LABELS, "no"]
    model = BagOfBigrams.fit(texts, labels)
    unknown = model.probabilities(["xyzzy plugh", "", "good"])
    prior = torch.tensor([11, 10, 10], dtype=torch.float64) / 31
    torch.testing.assert_close(unknown[:2], prior.expand(2, -1))
    assert not torch.allclose(unknown[2], prior)
    assert model.predict(["xyzzy"]) == ["no"]
    assert BagOfBigrams.fit(["", ""], ["b", "a"]).predict(["x"]) == ["a"]
    assert model.predict([]) == []


def test_bag_of_bigrams_repeats_itself():
    one, other = BagOfBigrams.fit(TEXTS, LABELS), BagOfBigrams.fit(TEXTS, LABELS)
    assert torch.equal(one.weights, other.weights) and one.penalty == other.penalty


def test_bag_of_bigrams_refuses_unequal_numbers():
    with pytest.raises(WeftError, match="2 texts and 1 labels"):
        BagOfBigrams.fit(["a", "b"], ["x"])
    with pytest.raises(WeftError, match="0 texts and 0 labels"):
        BagOfBigrams.fit([], [])


def test_frequent_tag_of_words_endings_and_all():
    sentences = [
        (["the", "run", "was", "running"], ["DET", "NOUN", "VERB", "VERB"]),
        (["the", "run", "run", "the"], ["DET", "NOUN", "VERB", "DET"]),
        (["a", "nation", "a", "station"], ["DET", "NOUN", "DET", "NOUN"]),
    ]
    model = FrequentTag.fit(sentences)
    assert model.predict([["run", "jumping"], ["motion", "xs", "xyz"], []]) == [
        ["NOUN", "VERB"], ["NOUN", "VERB", "DET"], [],
    ]  # fmt: skip


def test_frequent_tag_prefers_the_longest_ending_and_breaks_ties_by_name():
    model = FrequentTag.fit([(["string", "walking", "talking"], ["NOUN", "VERB", "VERB"]), (["up", "up"], ["B", "A"])])
    assert model.predict([["spring", "balking", "sing", "up"]]) == [["NOUN", "VERB", "VERB", "A"]]


def test_frequent_tag_refusals():
    with pytest.raises(WeftError, match="sentence 2 has 1 words and 2 tags"):
        FrequentTag.fit([(["a"], ["X"]), (["a"], ["X", "Y"])])
    with pytest.raises(WeftError, match="no tagged word"):
        FrequentTag.fit([([], [])])
