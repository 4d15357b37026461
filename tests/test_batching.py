from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import weft
from weft.data.batching import batches_by_length, pad_rows, shuffled_order
from weft.parts.masks import Padding

lengths = st.lists(st.integers(1, 30), min_size=1, max_size=60)


@settings(max_examples=60, deadline=None)
@given(lengths, st.integers(30, 90), st.integers(0, 9), st.integers(0, 3))
def test_batches_by_length_hold_all_once_and_fit(sizes, tokens, seed, epoch):
    batches = batches_by_length(sizes, tokens, seed, epoch)
    assert sorted(index for batch in batches for index in batch) == list(range(len(sizes)))
    assert all(len(batch) * max(sizes[i] for i in batch) <= tokens for batch in batches)
    assert batches == batches_by_length(sizes, tokens, seed, epoch)


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
