"""`weft bench sameness` finds servers whose answers depend on who else asks."""

from __future__ import annotations

import math

import pytest

from weft.bench.cases.sameness import CLIENTS, HEADINGS, Answer, compare, requests_of
from weft.bench.contest import BenchOptions

QUICK = BenchOptions(rounds=2, quick=True)


def count(ask):
    rows = compare("a server", ask, QUICK, lambda _: None)
    assert [row["clients"] for row in rows] == list(CLIENTS) and all(len(row) == len(HEADINGS) for row in rows)
    return [(row["texts"], row["log-probabilities"], row["largest"]) for row in rows]


def test_answers_that_are_the_same_in_any_order_count_as_none():
    assert count(lambda bodies, clients: [Answer(body["prompt"], (-1.5,)) for body in bodies]) == [(0, 0, 0.0)] * 3


@pytest.mark.parametrize(
    ("text", "score", "found"),
    [(False, 2.0**-30, (0, 6, 2.0**-30)), (True, 0.0, (6, 0, 0.0)), (False, math.nan, (0, 6, math.nan))],
)
def test_a_server_that_looks_at_its_company_is_caught(text, score, found):
    def ask(bodies, clients):
        more = clients > 1
        return [Answer(f"{body['prompt']}{more * text}", (-1.0 - score if more else -1.0,)) for body in bodies]

    assert repr(count(ask)) == repr([(0, 0, 0.0), found, found])


def test_requests_are_of_many_lengths_and_share_beginnings():
    found = requests_of(53, 7, 41)
    lengths = {len(one["prompt"].split()) for one in found}
    assert len(lengths) > 20 and max(lengths) < 41
    assert len({one["prompt"][:12] for one in found}) < 53
    assert {one["temperature"] for one in found} == {0, 0.8}
