"""The recurrent seq2seq model computes for all steps at once what does not depend on the step before."""

from __future__ import annotations

import pytest
import torch

import weft
from weft.models.recurrent_seq2seq import RecurrentSeq2SeqSpec
from weft.parts.masks import Real

B, S, T, C = 3, 5, 7, 23


def build(cell, attention="additive", wiring="before"):
    spec = RecurrentSeq2SeqSpec(vocabulary=C, width=5, hidden=7, cell=cell, attention=attention, wiring=wiring)
    return weft.build(spec).double()


def data():
    draw = torch.Generator().manual_seed(1)
    source, target = (torch.randint(0, C, (B, length), generator=draw) for length in (S, T))
    source_real = torch.arange(S) < torch.tensor([5, 3, 1])[:, None]
    real = torch.arange(T) < torch.tensor([4, 7, 2])[:, None]
    return source, target, source_real, real


def step_by_step(model, source, target, source_real):
    """The lectures' equations, one step after the other: c_t by query s_(t-1), s_t = g([y_(t-1); c_t], s_(t-1))."""
    memory = model.encode(source, mask=Real(source_real))
    y, state, states = model.target_embedding(target), model._start(memory.summary), []
    for t in range(target.shape[1]):
        scores = model.score(state[0][:, None, None], memory.hidden[:, None])[:, 0]
        weights = model.score.weigh(scores, source_real[:, None])
        state = model.decoder.step(torch.cat((y[:, t], (weights @ memory.hidden)[:, 0]), -1), state)
        states.append(state[0])
    return model.head(torch.stack(states, 1))


@pytest.mark.parametrize("cell", ["rnn", "gru", "lstm"])
@pytest.mark.parametrize("length", [1, 2, T])
def test_attention_before_the_step_follows_the_equations(cell, length):
    model, (source, target, source_real, real) = build(cell), data()
    target, real = target[:, :length], real[:, :length]
    found = model(source, target, source_mask=Real(source_real), mask=Real(real)).logits[real]
    expected = step_by_step(model, source, target, source_real)[real]
    torch.testing.assert_close(found, expected, atol=1e-12, rtol=0)
    wanted = list(model.parameters())
    slopes = [torch.autograd.grad(y.square().sum(), wanted, allow_unused=True) for y in (found, expected)]
    for ours, theirs in zip(*slopes, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-11, rtol=0)


@pytest.mark.parametrize("cell", ["rnn", "gru", "lstm"])
@pytest.mark.parametrize(("attention", "wiring"), [("additive", "before"), ("bilinear", "after"), ("none", "before")])
def test_padding_of_the_target_changes_nothing_and_a_state_ends_at_the_last_real_token(cell, attention, wiring):
    model, (source, target, source_real, real) = build(cell, attention, wiring), data()
    with torch.no_grad():
        memory = model.encode(source, mask=Real(source_real))
        together = model.decode(target, memory, mask=Real(real)).logits
        state = model.make_state(B)
        kept = model.decode(target, memory, mask=Real(real), state=state)
        after = model.decode(target[:, :1], memory, state=kept.state).logits[:, 0]
        for row, length in enumerate(real.sum(1).tolist()):
            own = model.encode(source[row : row + 1, : source_real[row].sum()])
            text = torch.cat((target[row : row + 1, :length], target[row : row + 1, :1]), 1)
            alone = model.decode(text, own).logits[0]
            torch.testing.assert_close(together[row, :length], alone[:length], atol=1e-12, rtol=0)
            torch.testing.assert_close(after[row], alone[length], atol=1e-12, rtol=0)
