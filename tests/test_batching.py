from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import weft
from weft.data.batching import CALL_ON_CPU, batches_by_length, groups_of_like_length, pad_rows, shuffled_order
from weft.parts.masks import Padding

lengths = st.lists(st.integers(1, 30), min_size=1, max_size=60)


@settings(max_examples=60, deadline=None)
@given(lengths, st.integers(30, 90), st.integers(0, 9), st.integers(0, 3))
def test_batches_by_length_hold_all_once_and_fit(sizes, tokens, seed, epoch):
    batches = batches_by_length(sizes, tokens, seed, epoch)
    assert sorted(index for batch in batches for index in batch) == list(range(len(sizes)))
    assert all(len(batch) * max(sizes[i] for i in batch) <= tokens for batch in batches)
    assert batches == batches_by_length(sizes, tokens, seed, epoch)


def cost(groups, sizes):
    return sum(len(group) * max(sizes[i] for i in group) + CALL_ON_CPU for group in groups)


def every_cut(order):
    """All ways to cut an order into pieces."""
    if not order:
        yield []
    for first in range(1, len(order) + 1):
        for rest in every_cut(order[first:]):
            yield [order[:first], *rest]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 200), max_size=9), st.integers(1, 1800), st.none() | st.integers(1, 5))
def test_groups_of_like_length_hold_all_once_fit_and_cost_least(sizes, tokens, rows):
    groups = groups_of_like_length(sizes, tokens, torch.device("cpu"), rows)
    assert sorted(index for group in groups for index in group) == list(range(len(sizes)))
    for group in groups:
        assert len(group) <= (rows or len(group))
        assert len(group) == 1 or len(group) * max(sizes[i] for i in group) <= tokens
    if rows is None and len(sizes) * max(sizes, default=0) <= tokens:
        order = sorted(range(len(sizes)), key=lambda i: sizes[i])
        assert cost(groups, sizes) == min((cost(cut, sizes) for cut in every_cut(order)), default=0)


def test_groups_are_cut_where_padding_would_cost_more_than_a_call():
    sizes = [7, 101, 7, 103, 9]
    assert groups_of_like_length(sizes, 8192, torch.device("cpu")) == [[0, 2, 4], [1, 3]]
    assert groups_of_like_length(sizes, 8192, torch.device("cuda")) == [[0, 2, 4, 1, 3]]


def test_order_depends_on_seed_and_epoch_alone():
    torch.manual_seed(1)
    first = shuffled_order(50, 3, 0)
    torch.manual_seed(2)
    assert shuffled_order(50, 3, 0) == first
    assert shuffled_order(50, 3, 1) != first != shuffled_order(50, 4, 0)
    assert sorted(first) == list(range(50))
    assert max(len(b) for b in batches_by_length([1] * 50, 100, 0, 0, most=4)) == 4


def test_padding_on_either_side():
    rows = pad_rows([[1, 2, 3], [4]], pad=9, side="left")
    assert rows.tokens.tolist() == [[1, 2, 3], [9, 9, 4]] and rows.lengths.tolist() == [3, 1]
    right = pad_rows([[1, 2, 3], [4]], pad=9)
    assert right.tokens.tolist() == [[1, 2, 3], [4, 9, 9]]
    assert Padding(rows.lengths, rows.side).grid(3, row=1)[2].tolist() == [False, False, True]


def test_errors():
    with pytest.raises(weft.WeftError, match="does not fit a batch of 3"):
        batches_by_length([4], 3, 0, 0)
    with pytest.raises(weft.WeftError, match="no rows"):
        pad_rows([], 0)
