from __future__ import annotations

import functools
import operator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import weft
from weft.data.batching import batches_by_length, batches_of, pack_rows, pad_rows, share_of, shuffled_order
from weft.parts.masks import Documents, Padding

lengths = st.lists(st.integers(1, 30), min_size=1, max_size=60)


@settings(max_examples=60, deadline=None)
@given(lengths, st.integers(30, 90), st.integers(0, 9), st.integers(0, 3), st.integers(1, 5))
def test_batches_by_length_hold_all_once_and_fit(sizes, tokens, seed, epoch, processes):
    batches = batches_by_length(sizes, tokens, seed, epoch)
    assert sorted(index for batch in batches for index in batch) == list(range(len(sizes)))
    assert all(len(batch) * max(sizes[i] for i in batch) <= tokens for batch in batches)
    assert batches == batches_by_length(sizes, tokens, seed, epoch)
    for batch in batches:
        shares = [share_of(batch, process, processes) for process in range(processes)]
        assert sorted(functools.reduce(operator.iadd, shares, [])) == sorted(batch)
        assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_order_depends_on_seed_and_epoch_alone():
    torch.manual_seed(1)
    first = shuffled_order(50, 3, 0)
    torch.manual_seed(2)
    assert shuffled_order(50, 3, 0) == first
    assert shuffled_order(50, 3, 1) != first != shuffled_order(50, 4, 0)
    assert sorted(functools.reduce(operator.iadd, batches_of(50, 7, 3, 0), [])) == list(range(50))
    assert max(len(b) for b in batches_by_length([1] * 50, 100, 0, 0, most=4)) == 4


@settings(max_examples=60, deadline=None)
@given(lengths, st.integers(30, 64))
def test_packing_keeps_documents_whole_and_wastes_little(sizes, width):
    documents = [[number] * size for number, size in enumerate(sizes)]
    packed = pack_rows(documents, width, pad=99)
    for number, size in enumerate(sizes):
        where = packed.documents == number
        assert int(where.sum()) == size and int(where.any(1).sum()) == 1
        assert (packed.tokens[where] == number).all()
    assert (packed.tokens[packed.documents < 0] == 99).all()
    assert len(packed.tokens) <= 2 * -(-sum(sizes) // width)
    model = weft.build(weft.preset("nano-gpt").replace(layers=1, width=8, length=64, **{"mixer.heads": 1}))
    model(packed.tokens, mask=Documents(packed.documents))


def test_padding_on_either_side():
    rows = pad_rows([[1, 2, 3], [4]], pad=9, side="left")
    assert rows.tokens.tolist() == [[1, 2, 3], [9, 9, 4]] and rows.lengths.tolist() == [3, 1]
    right = pad_rows([[1, 2, 3], [4]], pad=9)
    assert right.tokens.tolist() == [[1, 2, 3], [4, 9, 9]]
    assert Padding(rows.lengths, rows.side).grid(3, row=1)[2].tolist() == [False, False, True]


def test_errors():
    with pytest.raises(weft.WeftError, match="does not fit a row of 3"):
        pack_rows([[1] * 4], 3, 0)
    with pytest.raises(weft.WeftError, match="does not fit a batch of 3"):
        batches_by_length([4], 3, 0, 0)
    with pytest.raises(weft.WeftError, match="no rows"):
        pad_rows([], 0)
