"""Beam search against the list of all texts, and the same in any company."""

from __future__ import annotations

import itertools

import pytest
import torch

import weft
from test_inference import PLANS, STOP, same
from weft.inference.decoding.beam import BackPointer, Beam, OpenHypothesis, PromptSearch, beam_search
from weft.inference.decoding.generate import generate
from weft.inference.decoding.request import GenerationRequest
from weft.inference.decoding.sampling import Sampling
from writers import PROMPTS, WRITERS, full_logits, given, tiny, writer

TINY = ["nano-gpt", "nano-rnn", "nano-seq2seq", "nano-gru-additive", "nano-gru-plain", "nano-image-text"]


def every_text(model, prompt, conditions, stop, longest, penalty):
    """All texts with their scores, best first: those that stop, and those of the full length."""
    tree = {(): 0.0}
    found = []
    for length in range(1, longest + 1):
        grown = {}
        for text, total in tree.items():
            chances = full_logits(model, [*prompt, *text], conditions)[-1].log_softmax(-1).tolist()
            for token, chance in enumerate(chances):
                if token in stop or length == longest:
                    score = (total + chance) / ((5 + length) / 6) ** penalty
                    found.append((score, list(text) if token in stop else [*text, token]))
                else:
                    grown[(*text, token)] = total + chance
        tree = grown
    return sorted(found, key=lambda one: -one[0])


@pytest.mark.parametrize("name", TINY)
def test_a_wide_beam_finds_the_best_of_all_texts(name):
    model = tiny(name)
    conditions = given(model, [1])
    if "source" in conditions:
        conditions["source"] = [[3, 1, 4, 1, 2]]
    for penalty, prompt in itertools.product((0.0, 0.6, 1.3, -0.5), ([1, 3], [2])):
        expected = every_text(model, prompt, conditions, {0}, 4, penalty)
        (found,) = beam_search(
            model, GenerationRequest([prompt], max_tokens=4, stop=[0], **conditions), Beam(400, penalty, best=7)
        )
        assert [one.tokens for one in found] == [tokens for _, tokens in expected[:7]]
        assert [one.score for one in found] == pytest.approx([score for score, _ in expected[:7]], abs=1e-9)


def test_two_stop_tokens():
    model = tiny("nano-gpt")
    expected = every_text(model, [1], {}, {0, 3}, 4, 1.0)
    (found,) = beam_search(model, GenerationRequest([[1]], max_tokens=4, stop=[0, 3]), Beam(400, 1.0, best=5))
    assert [one.score for one in found] == pytest.approx([score for score, _ in expected[:5]], abs=1e-9)


@pytest.mark.parametrize("name", WRITERS)
def test_a_prompt_is_searched_the_same_alone_and_in_any_company(name):
    model = writer(name)
    beam, call = Beam(3, 0.8, best=2), {"max_tokens": 9, "stop": STOP}
    alone = [
        beam_search(model, GenerationRequest([PROMPTS[row]], **given(model, [row]), **call), beam)[0]
        for row in range(4)
    ]
    for n, prefill in enumerate(PLANS):
        rows = [[0, 1, 2, 3], [3, 2, 0], [2, 1]][n % 3]
        together = beam_search(
            model, GenerationRequest([PROMPTS[r] for r in rows], prefill=prefill, **given(model, rows), **call), beam
        )
        for row, found in zip(rows, together, strict=True):
            for a, b in zip(found, alone[row], strict=True):
                same(a, b)


@pytest.mark.parametrize("name", ["nano-gpt", "nano-gru-additive", "learned", "nano-conv"])
def test_a_beam_of_one_is_greedy(name):
    model = writer(name)
    call = {"max_tokens": 9, "stop": STOP, **given(model, [0, 1, 2, 3])}
    greedy = generate(model, GenerationRequest(PROMPTS, **call))
    for (found,), one in zip(beam_search(model, GenerationRequest(PROMPTS, **call), Beam(1, 0.0)), greedy, strict=True):
        same(found, one)


@pytest.mark.parametrize("name", ["nano-gpt", "nano-moe", "nano-conv", "window"])
@pytest.mark.parametrize("penalty", [0.0, 0.6, 2.0, -1.0])
def test_ending_early_misses_nothing(name, penalty, monkeypatch):
    model = writer(name)
    beam, call = Beam(4, penalty, best=3), {"max_tokens": 8, "stop": STOP}
    early = beam_search(model, GenerationRequest(PROMPTS, **call), beam)
    steps = []
    monkeypatch.setattr(PromptSearch, "done", lambda self, beam, length, most: steps.append(length) or not self.open)
    for a, b in zip(early, beam_search(model, GenerationRequest(PROMPTS, **call), beam), strict=True):
        for one, other in zip(a, b, strict=True):
            same(one, other)
    assert max(steps) == 8


def test_an_open_hypothesis_may_win_at_a_later_length():
    """-1.2 / lp(2) is worse than the pool's -1, but -1.2 / lp(20) is better; a negative penalty favors short ones."""
    node = BackPointer(None, 1, -1.0, None)
    one = PromptSearch(0, [OpenHypothesis(0, -1.2, node)], [(-1.0, "stop", node)])
    assert not one.done(Beam(2, 1.0), 1, 20) and one.done(Beam(2, 1.0), 1, 2)
    assert not one.done(Beam(2, 1.0, best=2), 1, 2)
    assert one.done(Beam(2, 0.0), 1, 20)
    late = PromptSearch(0, [OpenHypothesis(0, -0.9, node)], [(-1.0, "stop", node)])
    assert not late.done(Beam(2, -0.2), 1, 20) and PromptSearch(0, []).done(Beam(), 1, 20)


def test_scores_are_those_of_the_model():
    model = writer("nano-seq2seq")
    for row, found in enumerate(
        beam_search(
            model,
            GenerationRequest(PROMPTS, max_tokens=9, stop=STOP, **given(model, [0, 1, 2, 3])),
            Beam(5, 0.7, best=4),
        )
    ):
        assert [one.score for one in found] == sorted((one.score for one in found), reverse=True)
        assert len({(*one.tokens, one.finish_reason) for one in found}) == 4
        for one in found:
            chances = full_logits(model, [*PROMPTS[row], *one.tokens], given(model, [row])).log_softmax(-1)
            begin = len(PROMPTS[row]) - 1
            each = [chances[begin + n, token].item() for n, token in enumerate(one.tokens)]
            assert one.log_probabilities == pytest.approx(each, abs=1e-9)


def test_alignments_follow_the_hypothesis():
    model = writer("nano-gru-additive")
    for row, (found,) in enumerate(
        beam_search(model, GenerationRequest(PROMPTS, max_tokens=9, stop=STOP, **given(model, [0, 1, 2, 3])), Beam(5))
    ):
        source = torch.tensor(given(model, [row])["source"])
        with torch.no_grad():
            out = model(source, torch.tensor([[*PROMPTS[row], *found.tokens]]))
        begin = len(PROMPTS[row]) - 1
        assert found.alignment.shape == (len(found.tokens), source.shape[1])
        assert torch.allclose(found.alignment, out.auxiliary["alignment"][0, begin : begin + len(found.tokens)])


def test_nonsense_is_refused():
    for fields, message in (({"width": 0}, "use at least 1"), ({"width": 2, "best": 3}, "widen it")):
        with pytest.raises(weft.WeftError, match=message):
            Beam(**fields)
    for fields in ({"samples": 2}, {"sampling": Sampling()}):
        with pytest.raises(weft.WeftError, match="beam search draws nothing"):
            beam_search(writer("nano-gpt"), GenerationRequest(PROMPTS, **fields))
    with pytest.raises(weft.WeftError, match=r"trained for 41: give fewer$"):
        beam_search(writer("nano-gpt"), GenerationRequest(PROMPTS, max_tokens=36, overflow="slide"))
    with pytest.raises(weft.WeftError, match="trained for 41"):
        beam_search(writer("nano-gpt"), GenerationRequest(PROMPTS, max_tokens=36))
