"""Speculative decoding: greedy text is the very same, sampled text has the same distribution; states that forget."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

import weft
from weft.inference.decoding.generate import generate
from weft.inference.decoding.request import GenerationRequest
from weft.inference.decoding.sampling import Sampling
from weft.inference.decoding.speculative import DraftModel, PromptLookup, Proposal, speculate
from weft.parts.state import RING_SLACK
from writers import WRITERS, full_logits, given, tiny, writer

PROMPT = [5, 17, 3, 19, 5, 17, 3]
STOP = [2]


class Oracle:
    """Guesses what is known to come, wrong at every fifth place."""

    def __init__(self, prompt: list[int], answer: list[int]) -> None:
        self.text = [*prompt, *((token + (n % 5 == 4)) % 47 for n, token in enumerate(answer))]

    def begin(self, sampling, seed) -> None:
        pass

    def propose(self, text: list[int], most: int) -> Proposal:
        return Proposal(self.text[len(text) : len(text) + min(7, most)])


@pytest.mark.parametrize("name", WRITERS)
def test_greedy_text_is_the_very_same(name):
    model = writer(name)
    conditions = given(model, [1])
    (plain,) = generate(model, GenerationRequest([PROMPT], max_tokens=34, stop=STOP, **conditions))
    drafts = [PromptLookup(5, 2), Oracle(PROMPT, plain.tokens)]
    if model.declares().vocabulary == 53:
        drafts += [DraftModel(writer("nano-rnn"), 3), DraftModel(writer("window"), 4)]
    for draft in drafts:
        found = speculate(model, GenerationRequest([PROMPT], max_tokens=34, stop=STOP, **conditions), draft)[0]
        assert (found.tokens, found.finish_reason) == (plain.tokens, plain.finish_reason)
        assert found.log_probabilities == pytest.approx(plain.log_probabilities, abs=1e-9)
        assert found.score == pytest.approx(plain.score, abs=1e-9)
        assert 0 <= found.accepted <= found.proposed
    assert (
        len(plain.tokens) < 6
        or speculate(model, GenerationRequest([PROMPT], max_tokens=34, **conditions), drafts[1])[0].accepted > 3
    )


@pytest.mark.parametrize("name", ["window", "window-alibi", "hybrid"])
def test_rings_that_have_wrapped_take_guesses_back(name):
    model = writer(name, length=211)
    (plain,) = generate(model, GenerationRequest([PROMPT], max_tokens=150))
    oracle = Oracle(PROMPT, plain.tokens)
    found = speculate(model, GenerationRequest([PROMPT], max_tokens=150), oracle)[0]
    assert found.tokens == plain.tokens and found.calls < 130


def test_a_good_draft_saves_calls():
    model = writer("nano-gpt")
    found = speculate(model, GenerationRequest([PROMPT], max_tokens=31), DraftModel(model, 4))[0]
    assert found.accepted == found.proposed and found.calls <= 1 + 30 / 5 + 1
    repeat = speculate(writer("alibi"), GenerationRequest([PROMPT], max_tokens=34), PromptLookup(8, 1))[0]
    assert repeat.calls < 25


def test_with_a_repetition_penalty():
    model = writer("nano-gpt")
    sampling = Sampling(temperature=0, repetition=1.7)
    (plain,) = generate(model, GenerationRequest([PROMPT], sampling, max_tokens=30))
    for draft in (PromptLookup(5, 1), DraftModel(writer("alibi"), 3), Oracle(PROMPT, plain.tokens)):
        assert speculate(model, GenerationRequest([PROMPT], sampling, max_tokens=30), draft)[0].tokens == plain.tokens


class Stubborn:
    """Always proposes the same tokens, drawn from nothing."""

    def begin(self, sampling, seed) -> None:
        pass

    def propose(self, text: list[int], most: int) -> Proposal:
        return Proposal([1, 2][:most])


@pytest.mark.parametrize("kind", ["stubborn", "model"])
def test_sampled_text_has_the_models_distribution(kind):
    """All texts of three tokens out of 3, the first drawn plainly: chi-square with 26 degrees stays below 54.1."""
    model = tiny("nano-gpt", 3)
    draft = Stubborn() if kind == "stubborn" else DraftModel(tiny("nano-rnn", 3), 2)
    sampling = Sampling(temperature=1.4)
    N = 400
    counts = Counter(
        tuple(speculate(model, GenerationRequest([[1, 2]], sampling, max_tokens=3, seeds=seed), draft)[0].tokens)
        for seed in range(N)
    )
    chi = 0.0
    for a in range(3):
        for b in range(3):
            p = (full_logits(model, [1, 2, a, b], {})[1:] / 1.4).softmax(-1)
            for c in range(3):
                expected = N * (p[0, a] * p[1, b] * p[2, c]).item()
                chi += (counts[a, b, c] - expected) ** 2 / expected
    assert chi < 54.1


def test_prompt_lookup():
    lookup = PromptLookup(ahead=4, ngram=2)
    assert lookup.propose([1, 2, 3, 4, 5, 6, 1, 2], 9).tokens == [3, 4, 5, 6]
    assert lookup.propose([1, 2, 3, 4, 5, 6, 1, 2], 3).tokens == [3, 4, 5]
    assert lookup.propose([7, 2, 9, 1, 2, 8, 1, 2], 2).tokens == [8, 1]
    assert lookup.propose([7, 2, 9, 5, 2], 2).tokens == [9, 5]
    assert lookup.propose([1, 2, 2], 4).tokens == [2, 2, 2, 2]
    assert lookup.propose([1, 2, 3], 4).tokens == lookup.propose([1], 4).tokens == []


@pytest.mark.parametrize("name", ["nano-gpt", "alibi", "window", "nano-image-text", "nano-seq2seq"])
@pytest.mark.parametrize("lengths", [None, [9, 4]], ids=["even", "ragged"])
def test_a_state_that_forgets_is_as_it_was(name, lengths):
    model = writer(name)
    conditions = given(model, [0, 1])
    real = None if lengths is None else torch.arange(9) < torch.tensor(lengths)[:, None]
    tokens = torch.randint(0, 53, (2, 29), generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        memory = model.encode(torch.tensor([[1, 2], [3, 4]])) if "source" in conditions else None

        def call(part, state, first=False, mask=None):
            if memory is not None:
                return model.decode(part, memory, mask=mask, state=state).logits
            images = {"images": conditions["images"]} if first and "images" in conditions else {}
            return model(part, mask=mask, state=state, **images).logits

        straight, forgetful = model.make_state(2), model.make_state(2)
        for state in (straight, forgetful):
            call(tokens[:, :9], state, True, real)
        for count in (1, 3, 5):
            call(tokens[:, 20 : 20 + count + 2], forgetful)
            forgetful.rollback(count + 2)
            part = tokens[:, 9 + count : 9 + 2 * count]
            assert torch.allclose(call(part, forgetful), call(part, straight), atol=1e-10, rtol=0)


def test_what_cannot_be_forgotten_is_refused():
    model = writer("nano-rnn")
    state = model.make_state(1)
    model(torch.tensor([[1, 2]]), state=state)
    with pytest.raises(weft.WeftError, match=r"cannot take 1 tokens back: go on with a copy\(\) made before them"):
        state.rollback(1)
    with pytest.raises(weft.WeftError, match="cannot take 65 tokens back"):
        writer("nano-gpt").make_state(1).rollback(RING_SLACK + 1)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: PromptLookup(64), "use 1 to 63"),
        (lambda: PromptLookup(ngram=0), "use at least 1"),
        (lambda: DraftModel(writer("nano-seq2seq")), "a draft model is a decoder"),
        (
            lambda: speculate(
                writer("nano-gpt"), GenerationRequest([PROMPT], max_tokens=3), DraftModel(tiny("nano-gpt"))
            )[0],
            "a draft of 5 tokens",
        ),
        (lambda: speculate(writer("nano-gpt"), GenerationRequest([[]], max_tokens=3))[0], "at least one token"),
        (lambda: speculate(writer("nano-gpt"), GenerationRequest([PROMPT], max_tokens=36))[0], "trained for 41"),
    ],
)
def test_errors_say_what_to_do(make, message):
    with pytest.raises(weft.WeftError, match=message):
        make()
