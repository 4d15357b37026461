"""Tracks and clocks: growing, refusing, rings, ragged rows, documents."""

from __future__ import annotations

import pytest
import torch

import weft
from weft.parts.attention import SelfAttention
from weft.parts.block import PreNorm
from weft.parts.masks import Causal, Documents, Padding, Window
from weft.parts.norms import LayerNorm
from weft.parts.position_counter import PositionCounter
from weft.parts.relative import Rotary
from weft.parts.stack import Stack
from weft.parts.state import FIRST_CAPACITY, RING_SLACK, CacheSlots
from weft.parts.token_positions import TokenPositions

pytestmark = pytest.mark.usefixtures("double")
CPU = torch.device("cpu")


def stack(mask) -> Stack:
    blocks = [PreNorm(SelfAttention(12, 3), None, lambda: LayerNorm(12)) for _ in range(2)]
    return Stack(blocks, [mask, Causal()], Rotary(4)).eval()


def test_a_plain_track_needs_no_tensors():
    slots_of_window = CacheSlots(2, CPU)
    for first in range(0, 200, 10):
        cache_write = slots_of_window.plan_write(TokenPositions.run(first, 10, CPU))
        assert cache_write.first == first and cache_write.keys.plain and cache_write.keys.length == first + 10
    assert slots_of_window.positions is None and slots_of_window.capacity >= 200 > FIRST_CAPACITY


def test_a_bounded_track_refuses_and_stays_usable():
    slots_of_window = CacheSlots(1, CPU, capacity=5)
    slots_of_window.plan_write(TokenPositions.run(0, 4, CPU))
    with pytest.raises(weft.WeftError, match="6 tokens, but this state holds 5: make a state of larger capacity"):
        slots_of_window.plan_write(TokenPositions.run(4, 2, CPU))
    assert slots_of_window.plan_write(TokenPositions.run(4, 1, CPU)).keys.length == 5


def test_padding_takes_no_room():
    slots_of_window = CacheSlots(2, CPU, capacity=6)
    slots_of_window.plan_write(TokenPositions.of(torch.tensor([[0, 1, 2, 3], [-1, -1, 0, -1]])))
    keys = slots_of_window.plan_write(TokenPositions.of(torch.tensor([[4, -1, 5], [1, 2, -1]]))).keys
    assert keys.positions.tolist() == [[0, 1, 2, 3, 4, 5], [0, 1, 2, -1, -1, -1]]


@pytest.mark.parametrize("sizes", [[1] * 300, [150, 1, 1, 90, 58], [300], [70, 70, 70, 90]])
def test_a_ring_equals_the_full_forward_and_stays_small(sizes):
    model = stack(Causal() & Window(7))
    x = torch.randn(2, 300, 12)
    full = model(x, TokenPositions.run(0, 300, CPU))
    state = model.make_state(2, CPU)
    with torch.no_grad():
        pieces = []
        for piece in x.split(sizes, 1):
            pieces.append(model(piece, state.counter.arrange(piece.shape[1], None, None), state=state))
    assert torch.allclose(torch.cat(pieces, 1), full)
    assert state.layers[0].keys.shape[2] == 7 + RING_SLACK + 1
    assert state.layers[1].keys.shape[2] > 300


def test_ragged_rows_in_a_ring():
    model = stack(Causal() & Window(5))
    x = torch.randn(2, 120, 12)
    state = model.make_state(2, CPU)
    with torch.no_grad():
        mask = Padding(torch.tensor([3, 40]))
        first = torch.zeros(2, 40, 12)
        first[0, :3], first[1] = x[0, :3], x[1, :40]
        model(first, state.counter.arrange(40, None, mask), mask, state)
        steps = []
        for t in range(70):
            token = torch.stack((x[0, 3 + t], x[1, 40 + t]))[:, None]
            steps.append(model(token, state.counter.arrange(1, None, None), state=state))
        got = torch.cat(steps, 1)
        for row, start in ((0, 3), (1, 40)):
            alone = model(x[row : row + 1, : start + 70], TokenPositions.run(0, start + 70, CPU))
            assert torch.allclose(got[row], alone[0, start:])


def test_a_small_capacity_needs_no_ring():
    slots_of_window = CacheSlots(1, CPU, capacity=4, window=9)
    assert slots_of_window.window is None and slots_of_window.limit == 4


def test_the_clock_follows_documents_over_calls():
    counter = PositionCounter(1, CPU)
    for ids, positions in (
        ([[5, 5, 7]], [[0, 1, 0]]),
        ([[7, 7, 8]], [[1, 2, 0]]),
        ([[9, -1, -1]], [[0, -1, -1]]),
    ):
        token_positions = counter.arrange(3, None, Documents(torch.tensor(ids)))
        assert token_positions.positions.tolist() == positions
        counter.advance(token_positions)
    token_positions = counter.arrange(2, None, None)
    assert token_positions.positions.tolist() == [[1, 2]] and token_positions.documents.tolist() == [[3, 3]]


def test_an_id_that_comes_again_later_is_another_document():
    model = stack(Causal())
    x = torch.randn(1, 10, 12)
    state = model.make_state(1, CPU)
    with torch.no_grad():
        for a, b, ids in ((0, 4, [[0, 0, 1, 1]]), (4, 10, [[0] * 6])):
            mask = Documents(torch.tensor(ids))
            out = model(x[:, a:b], state.counter.arrange(b - a, None, mask), mask, state)
        assert torch.allclose(out, model(x[:, 4:], TokenPositions.run(0, 6, CPU)))


def test_documents_that_come_late_see_nothing_before_them():
    counter = PositionCounter(1, CPU)
    counter.advance(counter.arrange(4, None, None))
    token_positions = counter.arrange(2, None, Documents(torch.tensor([[3, 3]])))
    assert token_positions.positions.tolist() == [[0, 1]]


def test_documents_in_a_ring_joined_with_a_long_chunk():
    model = stack(Causal() & Window(5))
    x = torch.randn(1, 140, 12)
    ids = torch.tensor([[0] * 20 + [1] * 120])
    full = model(x, TokenPositions.of_documents(ids), Documents(ids))
    state = model.make_state(1, CPU)
    with torch.no_grad():
        out = []
        for a, b in ((0, 10), (10, 130), (130, 140)):
            mask = Documents(ids[:, a:b])
            out.append(model(x[:, a:b], state.counter.arrange(b - a, None, mask), mask, state))
    assert torch.allclose(torch.cat(out, 1), full)
