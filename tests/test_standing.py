"""Who is ahead in a race: extrapolated losses and their errors, on made-up and on recorded learning curves."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from learning_curves import made_up_race
from weft.training.planning.scaling import BETA, data_loss, worth
from weft.training.racing.standing import Curve, extrapolate, standing

UNIQUE = 1e6
SHARES = (0.0125, 0.025, 0.0375, 0.05)


def curve(c, s, shares, end, wiggle=(0, 0, 0, 0), expected=0.0):
    """Losses that follow the scaling law, at shares of the tokens at the end; the wiggle is added."""
    points = [
        (share * end, c + s * data_loss(share * end, UNIQUE) + more) for share, more in zip(shares, wiggle, strict=True)
    ]
    return Curve(points, end, expected)


def at_end(c, s, end):
    return c + s * data_loss(end, UNIQUE)


@pytest.mark.parametrize("s", [0.06, 0.1])
def test_losses_by_the_law_end_within_their_errors(s):
    curves = [curve(1.0, s, SHARES, 3e6), curve(0.9, s, SHARES, 5e5)]
    found = standing(curves, UNIQUE)
    for one, error, truth in zip(found.losses, found.errors, (at_end(1.0, s, 3e6), at_end(0.9, s, 5e5)), strict=True):
        assert abs(one - truth) < 2 * error < 0.6
    assert found.scale == pytest.approx(s, rel=0.35)


def test_worth_of_repeated_tokens():
    assert worth(5e5, UNIQUE) == 5e5 and worth(1e6, UNIQUE) == 1e6
    assert worth(3e6, UNIQUE) == pytest.approx(1e6 + 15.4e6 * (1 - math.exp(-2 / 15.4)))


def test_a_slow_entrant_that_is_behind_now_can_be_ahead_at_the_end():
    """It has read less by now, and falls on as the others do."""
    fast, slow = curve(1.4, 0.1, SHARES, 8e5), curve(0.8, 0.1, SHARES, 3e5)
    assert fast.points[-1][1] < slow.points[-1][1]
    assert standing([fast, slow], UNIQUE).order == (1, 0)


def test_a_loss_that_rises_does_not_fall_later():
    rising = [Curve([(100.0 * place, 2.0 + place / 2) for place in (1, 2, 3, 4)], 1e4)] * 2
    assert min(extrapolate(rising, UNIQUE).losses) == pytest.approx(3.75, abs=0.3)


def test_early_points_are_left_out():
    early = (3.0, 0, 0, 0)  # the first losses are far above the law
    pairs = [[curve(1.0, 0.1, SHARES, 3e6, more), curve(0.7, 0.1, SHARES, 5e5, more)] for more in ((0,) * 4, early)]
    plain, with_early = (standing(pair, UNIQUE) for pair in pairs)
    assert plain == with_early


@given(
    fall=st.floats(0.0, 5.0),
    share=st.floats(0.01, 0.5),
    noise=st.lists(st.floats(-0.3, 0.3), min_size=8, max_size=8),
    tokens=st.floats(1e3, 1e7),
)
@settings(max_examples=150, deadline=None)
def test_no_fall_is_steeper_than_a_scaling_law_allows(fall, share, noise, tokens):
    """However steep the first steps were: from L at D no entrant is promised less than L (D / D_end)^0.28."""
    shares = np.array((0.25, 0.5, 0.75, 1.0)) * share
    curves = []
    for place, end in enumerate((tokens, 0.4 * tokens)):
        losses = 1.0 + fall * (share / shares) ** 1.5 / 8 + np.array(noise[4 * place : 4 * place + 4])
        curves.append(Curve(list(zip((shares * end).tolist(), losses.tolist(), strict=True)), end))
    found = extrapolate(curves, 1e8)
    for one, loss in zip(curves, found.losses, strict=True):
        late = [y for _, y in one.points[1:]]
        assert loss >= min(late) * share**BETA - 0.35 and loss <= max(late) + 0.3
    assert np.linalg.eigvalsh(found.covariance).min() > 0
    decided = standing(curves, 1e8)
    assert sorted(decided.order) == [0, 1] and all(map(math.isfinite, decided.losses + decided.errors))


def test_noise_is_for_the_formula_and_evidence_against_it():
    rng = np.random.default_rng(3)
    for apart, first in ((0.0, 0), (0.5, 1)):  # by how much the second is better than the formula expects
        noise = rng.normal(0, 0.02, (2, 4))
        curves = [
            curve(1.0 - apart * number, 0.1, SHARES, 3e6, noise[number], 13.0 + 0.3 * number) for number in (0, 1)
        ]
        found = standing(curves, UNIQUE)
        assert found.order[0] == first and found.clear == bool(apart)


def test_the_more_noise_the_more_the_formula_decides():
    """The same lead of the second is believed where the points lie on their lines, and not where they do not."""
    lead = [curve(1.0 - 0.06 * number, 0.1, SHARES, 3e6, expected=13.0 + 0.9 * number) for number in (0, 1)]
    assert standing(lead, UNIQUE).order == (1, 0)
    wild = [
        replace(one, points=[(x, y + 0.4 * move) for (x, y), move in zip(one.points, (0, 1, -2, 1), strict=True)])
        for one in lead
    ]
    assert standing(wild, UNIQUE).order == (0, 1)


@pytest.mark.parametrize("law", ["power", "log"])
@pytest.mark.parametrize("noise", [0.005, 0.02, 0.05])
def test_choices_on_made_up_curves(law, noise):
    """Better than the formula alone, never much worse than who leads now, with errors that are errors; a race that is
    decided early is decided well."""
    rng = np.random.default_rng(7)
    lost, by_formula, by_lead, within, clear = [], [], [], [], []
    for _ in range(250):
        curves, ends = made_up_race(rng, law, noise)
        if len(curves) < 2:
            continue
        found = standing(curves, 1e8)
        lead = int(np.argmin([one.points[-1][1] for one in curves]))
        for each, choice in ((lost, found.order[0]), (by_formula, 0), (by_lead, lead)):
            each.append(ends[choice] - ends.min())
        within.append(np.mean(np.abs(np.array(found.losses) - ends) < 2 * np.array(found.errors)))
        if found.clear:
            clear.append(lost[-1])
    assert np.mean(lost) < 0.6 * np.mean(by_formula)
    assert np.mean(lost) < np.mean(by_lead) + 0.015
    if law == "power":
        assert np.mean(lost) < 0.8 * np.mean(by_lead)
    assert np.mean(within) > 0.7
    assert clear and np.mean(clear) < 0.01


# Held-out losses of two real trainings on tinyshakespeare, 75 seconds each on one core: (thousands of tokens, nats).
SMALL = [
    (41, 2.864), (82, 2.573), (123, 2.456), (164, 2.366), (205, 2.262), (246, 2.189), (287, 2.137), (328, 2.105),
    (410, 2.020), (492, 1.968), (573, 1.914), (655, 1.896), (819, 1.816), (1024, 1.749), (1241, 1.707),
]  # fmt: skip
LARGE = [
    (20, 2.732), (41, 2.548), (61, 2.404), (82, 2.349), (102, 2.302), (123, 2.233), (143, 2.203), (164, 2.177),
    (205, 2.095), (246, 2.006), (287, 1.969), (328, 1.922), (352, 1.905),
]  # fmt: skip


@pytest.mark.parametrize("share", [0.13, 0.2, 0.3, 0.5])
def test_recorded_trainings_end_as_promised(share):
    curves = []
    for points, expected in ((SMALL, 14.83), (LARGE, 14.94)):
        end = 1000.0 * points[-1][0]
        seen = [(1000.0 * tokens, loss) for tokens, loss in points if tokens <= share * points[-1][0]]
        curves.append(Curve(seen, end, expected))
    found = standing(curves, 1_003_854)
    assert found.order == (0, 1)
    for promised, error, points in zip(found.losses, found.errors, (SMALL, LARGE), strict=True):
        assert abs(promised - points[-1][1]) < min(2 * error, 0.3)
