"""Look-ahead: how many tokens are proposed follows what was accepted, and no look-ahead changes a text."""

from __future__ import annotations

import copy
import random
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.inference.decoding import look_ahead, speculative
from weft.inference.decoding.drafts import PRIORS, PromptLookup, Proposal
from weft.inference.decoding.generate import generate, stream
from weft.inference.decoding.look_ahead import MARGIN, AcceptanceRates, StepCost, best_ahead
from weft.inference.decoding.request import GenerationRequest
from weft.inference.decoding.sampling import GREEDY, Choice, Sampling
from weft.inference.decoding.speculative import speculate, speculates_unasked, stream_speculative
from weft.inference.fast.native.library import library
from writers import writer

PROMPT = [5, 17, 3, 19, 5, 17, 3]
SAMPLED = Sampling(temperature=0.7, top_k=11)


def test_the_best_look_ahead():
    assert best_ahead([0.1], [16]) == [0]  # 1.1 tokens for 1.2 steps
    assert best_ahead([0.3], [16]) == [1] and best_ahead([0.24], [16]) == [0]  # 1.24 tokens for 1.2 steps: too little
    assert best_ahead([1.0], [16]) == [16] and best_ahead([1.0], [5]) == [5] and best_ahead([0.9], [0]) == [0]
    found = [best_ahead([rate], [16])[0] for rate in (0.1, 0.3, 0.5, 0.7, 0.9, 0.97)]
    assert found == sorted(found) and found[-1] > 8
    # Each text has its own; a step of many texts gives many tokens, so what is proposed must be likelier.
    assert best_ahead([0.4, 0.9, 0.0], [9, 9, 9]) < [1, 3, 0] and best_ahead([0.9, 0.9], [9, 2])[1] == 2
    assert best_ahead([0.4], [9]) > [0] == best_ahead([0.4] * 7, [9] * 7)[:1]


@given(
    rates=st.lists(st.floats(0.0, 1.0), min_size=1, max_size=3),
    available=st.lists(st.integers(0, 4), min_size=3, max_size=3),
    cost=st.builds(StepCost, st.floats(0.01, 0.5), st.integers(1, 5), st.floats(0.01, 0.5)),
    spare=st.integers(0, 7),
)
def test_no_other_look_ahead_gives_more_tokens_per_cost(rates, available, cost, spare):
    available, room = available[: len(rates)], len(rates) + spare

    def gained(ahead):
        tokens = sum(sum(rate**k for k in range(count + 1)) for rate, count in zip(rates, ahead, strict=True))
        return tokens / cost.of(len(rates) + sum(ahead))

    found = best_ahead(rates, available, cost, room)
    others = [own for own in product(*(range(most + 1) for most in available)) if len(rates) + sum(own) <= room]
    best, without = max(map(gained, others)), gained([0] * len(rates))
    assert tuple(found) in others
    assert gained(found) >= best - 1e-12 if best > (1 + MARGIN) * without + 1e-12 else sum(found) == 0 or best > without


def test_the_look_ahead_grows_after_acceptance_and_shrinks_after_refusal():
    rates = AcceptanceRates((0.5,))

    def ahead():
        return best_ahead([rates.rate(0)], [16])[0]

    first = ahead()
    grown = []
    for _ in range(5):
        rates.learn(0, [1] * 16, [1] * (ahead() + 1))
        grown.append(ahead())
    assert first < grown[0] and grown == sorted(grown) and grown[-1] > 9
    for _ in range(19):
        rates.learn(0, [1] * 16, [2])
        grown.append(ahead())
    assert grown[5] < grown[4] and grown[-1] == 0
    for _ in range(4):  # nothing is proposed, but what would have been right ends the pause
        rates.learn(0, [1], [1])
    assert ahead() > 0
    assert rates.rate(7) == rates.rate(0)


def test_kinds_of_matches_are_judged_apart():
    rates = AcceptanceRates((0.1, 0.4, 0.6))
    rates.learn(2, [4, 5], [4, 5, 6])
    assert rates.rate(2) > 0.6 and (rates.rate(0), rates.rate(1)) == (0.1, 0.4)


@pytest.mark.parametrize("kind", range(len(PRIORS)))
def test_every_kind_pauses_in_the_end_where_nothing_is_accepted(kind):
    rates = AcceptanceRates(PRIORS)
    for _ in range(19):
        rates.learn(kind, [1, 1], [2])
    assert best_ahead([rates.rate(kind)], [16]) == [0]


def slow_lookup(text: list[int], most: int, ngram: int) -> list[int]:
    """By its definition: the longest match, the one nearest to the end."""
    for size in range(min(ngram, len(text) - 1), 0, -1):
        for at in range(len(text) - size - 1, -1, -1):
            if text[at : at + size] == text[-size:]:
                period = text[at + size :]
                return [period[n % len(period)] for n in range(most)]
    return []


def test_the_index_of_ngrams_finds_what_a_search_finds():
    rng = random.Random(3)
    lookup = PromptLookup(ahead=5, ngram=3)
    for _ in range(7):
        text = [rng.randrange(4)]
        for _ in range(29):
            text += [rng.randrange(4) for _ in range(rng.randrange(1, 4))]
            assert lookup.propose(text, 5).tokens == slow_lookup(text, 5, 3)


class Fixed:
    """Looks up, always the same number of tokens ahead."""

    def __init__(self, ahead: int) -> None:
        self.own = PromptLookup(ahead, 2)

    def begin(self, sampling, seed) -> None:
        self.own.begin(sampling, seed)

    def propose(self, text: list[int], most: int) -> Proposal:
        return self.own.propose(text, most)


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED, Sampling(temperature=1.3, repetition=1.4)], ids=str)
@pytest.mark.parametrize("name", ["nano-gpt", "alibi", "window", "nano-rnn"])
def test_any_look_ahead_gives_the_text_of_generate(name, sampling):
    model = writer(name)
    request = GenerationRequest([PROMPT, [4, 4]], sampling, max_tokens=31, seeds=[7, 8], stop=[2], step_top=3)
    plain = generate(model, request)
    for draft in (Fixed(1), Fixed(4), PromptLookup(9, 1), PromptLookup()):
        found = speculate(model, request, draft)
        assert [(one.tokens, one.finish_reason) for one in found] == [(one.tokens, one.finish_reason) for one in plain]
        for one, other in zip(found, plain, strict=True):
            assert one.log_probabilities == pytest.approx(other.log_probabilities, abs=1e-9)
            likeliest = [[[token for token, _ in step[1]] for step in text.choices] for text in (one, other)]
            assert likeliest[0] == likeliest[1]


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("limit", [1, 2, 13])
def test_streams_ends_and_limits_are_those_of_generate(sampling, limit):
    model = writer("nano-gpt")
    plain = list(stream(model, GenerationRequest([PROMPT], sampling, max_tokens=limit, seeds=5)))
    request = GenerationRequest([PROMPT], sampling, max_tokens=limit, seeds=5, stop=[plain[-1].token])
    for one in (GenerationRequest([PROMPT], sampling, max_tokens=limit, seeds=5), request):
        steps, found = list(stream(model, one)), list(stream_speculative(model, one))
        assert [(s.token, s.finish_reason) for s in found] == [(s.token, s.finish_reason) for s in steps]


def test_a_verifier_that_accepts_what_was_not_chosen_is_noticed(monkeypatch):
    model = writer("nano-gpt")
    request = GenerationRequest([PROMPT], SAMPLED, max_tokens=31, seeds=7)
    plain = generate(model, request)[0].tokens

    def trusting(logits, samplers, proposals, top):
        return [[Choice(token, 0.0) for token in [*proposals[0].tokens, int(logits[-1].argmax())]]]

    monkeypatch.setattr(speculative, "judge", trusting)
    assert speculate(model, request, Fixed(4))[0].tokens != plain


@pytest.mark.skipif(library() is None, reason="no compiler")
def test_it_is_on_unasked_where_no_bit_changes(monkeypatch):
    assert not speculates_unasked(
        copy.deepcopy(writer("nano-gpt")).float(), GenerationRequest([PROMPT], GREEDY, max_tokens=9)
    )
    monkeypatch.setattr(speculative, "WORTH", 0)
    model = copy.deepcopy(writer("nano-gpt")).float()
    one = GenerationRequest([PROMPT], GREEDY, max_tokens=31)
    assert speculates_unasked(model, one)
    assert not speculates_unasked(model, GenerationRequest([PROMPT], SAMPLED, max_tokens=31))
    many = GenerationRequest([PROMPT] * 16, GREEDY, max_tokens=31, samples=2)
    assert not speculates_unasked(model, many)
    monkeypatch.setattr(speculative, "UNASKED", 99)
    assert speculates_unasked(model, many)
    assert not speculates_unasked(model, GenerationRequest([PROMPT] * 11, GREEDY, max_tokens=31, samples=3))
    assert not speculates_unasked(model, GenerationRequest([PROMPT], GREEDY, max_tokens=9999))
    assert not speculates_unasked(copy.deepcopy(writer("nano-rnn")).float(), one)
    assert not speculates_unasked(writer("nano-gpt"), one)  # float64: torch computes, not the native step
    monkeypatch.setattr(look_ahead.StepCost, "of", lambda self, rows: 1.0)
    monkeypatch.setattr(look_ahead.StepCost, "extra", 0.0)
    plain, found = list(stream(model, one)), list(stream_speculative(model, one))
    assert [(s.token, s.log_probability) for s in found] == [(s.token, s.log_probability) for s in plain]
