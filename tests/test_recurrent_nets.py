"""Recurrent nets that learn on a CPU: outputs and gradients of torch's own, over plain and packed sequences."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence

from weft.parts import recurrent_nets
from weft.parts.recurrence import Recurrent
from weft.parts.segments import Segments
from weft.parts.token_positions import TokenPositions

B, T, D, H = 3, 7, 5, 11
CELLS = {
    "rnn": (recurrent_nets.RNN, nn.RNN),
    "gru": (recurrent_nets.GRU, nn.GRU),
    "lstm": (recurrent_nets.LSTM, nn.LSTM),
}
each_net = pytest.mark.parametrize(("cell", "ways"), [(cell, ways) for cell in CELLS for ways in (1, 2)])


def pair(cell, ways):
    torch.manual_seed(0)
    ours, theirs = (kind(D, H, batch_first=True, bidirectional=ways == 2).double() for kind in CELLS[cell])
    ours.load_state_dict(theirs.state_dict())
    return ours, theirs


def results(net, x, start, lengths):
    """Outputs, final hidden, and the gradients of inputs, start and weights for slopes of all of them."""
    x, start = x.clone().requires_grad_(), [h.clone().requires_grad_() for h in start]
    given = x if lengths is None else pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
    out, end = net(given, tuple(start) if len(start) > 1 else start[0])
    found = [out.data if isinstance(out, PackedSequence) else out, *(end if isinstance(end, tuple) else (end,))]
    loss = sum((y * torch.linspace(-1, 2, y.numel(), dtype=y.dtype).view_as(y)).sum() for y in found)
    return [*found, *torch.autograd.grad(loss, [x, *start, *net.parameters()])]


@each_net
@pytest.mark.parametrize("lengths", [None, [2, 7, 5], [1, 1, 1]])
def test_outputs_and_gradients_are_those_of_torch(cell, ways, lengths, monkeypatch):
    ours, theirs = pair(cell, ways)
    draw = torch.Generator().manual_seed(1)
    x = torch.randn(B, T, D, generator=draw, dtype=torch.float64)
    parts = 2 if cell == "lstm" else 1
    start = [torch.randn(ways, B, H, generator=draw, dtype=torch.float64) for _ in range(parts)]
    lengths = None if lengths is None else torch.tensor(lengths)
    expected = results(theirs, x, start, lengths)
    monkeypatch.setattr(CELLS[cell][1], "forward", None)  # torch's own forward is not called
    for found, right in zip(results(ours, x, start, lengths), expected, strict=True):
        torch.testing.assert_close(found, right, atol=1e-12, rtol=0)


@each_net
def test_frozen_weights_get_no_gradient_and_inputs_theirs(cell, ways):
    ours, theirs = pair(cell, ways)
    x = torch.linspace(-1, 1, B * T * D, dtype=torch.float64).view(B, T, D).requires_grad_()
    start = [torch.zeros(ways, B, H, dtype=torch.float64)] * (2 if cell == "lstm" else 1)
    slopes = []
    for net in (ours, theirs):
        for weight in net.parameters():
            weight.requires_grad_(False)
        out, _ = net(x, tuple(start) if len(start) > 1 else start[0])
        slopes += torch.autograd.grad(out.square().sum(), [x])
    torch.testing.assert_close(*slopes, atol=1e-12, rtol=0)


def test_where_nothing_learns_torch_runs(monkeypatch):
    ours, _ = pair("gru", 1)
    monkeypatch.setattr(recurrent_nets._GRU, "apply", None)
    x = torch.ones(B, T, D, dtype=torch.float64)
    with torch.no_grad():
        ours(x, torch.zeros(1, B, H, dtype=torch.float64))
    ours.requires_grad_(False)(x, torch.zeros(1, B, H, dtype=torch.float64))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        ours.requires_grad_(True)(x, torch.zeros(1, B, H, dtype=torch.float64))


def test_packed_segments_are_packed_as_torch_packs_them():
    ids = torch.tensor([[4, 4, 4, 9, 9, -1, -1], [2, 2, 2, 2, 2, 2, 2]])
    segments = Segments.of(TokenPositions.of_documents(ids), 2)
    x = torch.randn(2, T, D)
    found, place = segments.pack(x)
    right = pack_padded_sequence(segments.gather(x), segments.lengths, batch_first=True, enforce_sorted=False)
    for ours, theirs in zip(found, right, strict=True):
        assert torch.equal(ours, theirs)
    assert torch.equal(x.flatten(0, 1)[place], found.data)


@pytest.mark.parametrize("cell", CELLS)
def test_gradients_do_not_reach_padding_or_another_document(cell):
    net = Recurrent(cell, D, H).double()
    ids = torch.tensor([[4, 4, 4, 9, 9, -1, -1]])
    x = torch.randn(1, T, D, dtype=torch.float64, requires_grad=True)
    out, _ = net(x, TokenPositions.of_documents(ids))
    (slope,) = torch.autograd.grad(out[0, 4].sum(), [x])
    assert torch.equal(slope[0].abs().sum(-1) > 0, torch.tensor([0, 0, 0, 1, 1, 0, 0], dtype=torch.bool))
