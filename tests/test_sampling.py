"""Temperature, top-k, top-p, min-p, repetition: small cases by hand; draws by the inverse of the cumulative sum."""

from __future__ import annotations

import pytest
import torch

import weft
from weft.inference.decoding.sampling import (
    BLOCK,
    Sampling,
    UniformStreams,
    choose_tokens,
    distribution,
    draw,
    penalize,
)

P = torch.tensor([[0.1, 0.4, 0.05, 0.25, 0.2]], dtype=torch.float64)


@pytest.mark.parametrize(
    ("sampling", "expected"),
    [
        (Sampling(), [0.1, 0.4, 0.05, 0.25, 0.2]),
        (Sampling(temperature=0), [0, 1, 0, 0, 0]),
        (Sampling(temperature=1e-300), [0, 1, 0, 0, 0]),
        (Sampling(temperature=0.5), [0.01, 0.16, 0.0025, 0.0625, 0.04]),
        (Sampling(top_k=2), [0, 0.4, 0, 0.25, 0]),
        (Sampling(top_k=9), [0.1, 0.4, 0.05, 0.25, 0.2]),
        (Sampling(top_p=0.3), [0, 0.4, 0, 0, 0]),
        (Sampling(top_p=0.41), [0, 0.4, 0, 0.25, 0]),
        (Sampling(top_p=0.8), [0, 0.4, 0, 0.25, 0.2]),
        (Sampling(top_p=1.0), [0.1, 0.4, 0.05, 0.25, 0.2]),
        (Sampling(min_p=0.45), [0, 0.4, 0, 0.25, 0.2]),
        (Sampling(min_p=0.2), [0.1, 0.4, 0, 0.25, 0.2]),
        (Sampling(top_k=3, top_p=0.75), [0, 0.4, 0, 0.25, 0]),
        (Sampling(temperature=0.5, min_p=0.3), [0, 0.16, 0, 0.0625, 0]),
    ],
    ids=str,
)
def test_by_hand(sampling, expected):
    expected = torch.tensor([expected], dtype=torch.float64)
    for shift in (0.0, 1000.0):
        found = distribution(P.log() + shift, sampling)
        assert torch.allclose(found, expected / expected.sum())
        assert ((found == 0) == (expected == 0)).all()


def test_ties_at_an_edge_are_all_kept():
    tied = torch.tensor([[1.0, 2.0, 1.0, 0.0]])
    assert (distribution(tied, Sampling(top_k=2)) > 0).tolist() == [[True, True, True, False]]
    assert (distribution(tied, Sampling(top_p=0.6)) > 0).tolist() == [[True, True, True, False]]
    assert distribution(torch.zeros(1, 3), Sampling(temperature=0)).tolist() == [[1, 0, 0]]


def test_repetition_makes_seen_tokens_less_likely():
    logits = torch.tensor([[2.0, -2.0, 2.0, -2.0]])
    seen = torch.tensor([[True, True, False, False]])
    assert penalize(logits, seen, 2.0).tolist() == [[1.0, -4.0, 2.0, -2.0]]
    tokens, chances = choose_tokens(logits, Sampling(temperature=0, repetition=2.0), seen=seen)
    assert tokens.tolist() == [2] and chances.tolist() == pytest.approx([logits.log_softmax(-1)[0, 2].item()])
    assert torch.allclose(
        distribution(logits, Sampling(repetition=2.0), seen), torch.tensor([[1.0, -4, 2, -2]]).double().softmax(-1)
    )


def test_draws_follow_the_cumulative_sum_and_never_take_a_zero():
    p = torch.tensor([[0.0, 0.25, 0.0, 0.5, 0.25, 0.0]], dtype=torch.float64)
    cases = {0.0: 1, 0.2499: 1, 0.25: 3, 0.7499: 3, 0.75: 4, 1 - 2**-53: 4}
    for uniform, token in cases.items():
        assert draw(p, torch.tensor([uniform], dtype=torch.float64)).tolist() == [token]
    assert draw(3 * p, torch.tensor([1 - 2**-53], dtype=torch.float64)).tolist() == [4]


def test_a_row_draws_the_same_whatever_its_company():
    alone, together = UniformStreams([5], torch.device("cpu")), UniformStreams([3, 5, 8], torch.device("cpu"))
    one, many = [], []
    for step in range(2 * BLOCK + 7):
        if step == 41:
            together.keep([2, 1])
        one.append(alone.next()[0].item())
        many.append(together.next()[1].item())
    assert one == many and len(set(one)) == len(one)


def test_log_probabilities_are_the_models_own():
    sampling = Sampling(temperature=0.3, top_k=2)
    tokens, chances = choose_tokens(P.log().float(), sampling, torch.tensor([0.99], dtype=torch.float64))
    assert tokens.tolist() == [3] and chances.exp().tolist() == pytest.approx([0.25])


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": -1.0},
        {"temperature": float("nan")},
        {"top_k": 0},
        {"top_p": 0.0},
        {"top_p": 1.1},
        {"min_p": -0.1},
        {"repetition": 0.0},
    ],
    ids=str,
)
def test_nonsense_is_refused(fields):
    with pytest.raises(weft.WeftError, match="use"):
        Sampling(**fields)
