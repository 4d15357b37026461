"""Generation: the same text alone, in company, on either padding side, with and without cache, in any chunks."""

from __future__ import annotations

import math
from dataclasses import FrozenInstanceError
from itertools import chain

import pytest
import torch

import weft
from weft.inference.decoding.beam import Beam, beam_search
from weft.inference.decoding.conditioning import ImageConditioned, MemoryConditioned, Unconditioned
from weft.inference.decoding.generate import generate, next_distribution, stream
from weft.inference.decoding.request import GenerationRequest
from weft.inference.decoding.sampling import GREEDY, Sampling
from weft.inference.decoding.sessions import PrefillOptions
from weft.inference.decoding.speculative import speculate
from writers import PROMPTS, WRITERS, full_logits, given, tiny, writer

STOP = [2, 11, 23, 29, 37, 43]
SAMPLED = Sampling(temperature=1.3, top_k=31, top_p=0.97, min_p=0.001, repetition=1.1)
PLANS = [
    PrefillOptions(),
    PrefillOptions(side="left"),
    PrefillOptions(chunk=1),
    PrefillOptions(chunk=3, side="left"),
    PrefillOptions(chunk=100),
    PrefillOptions(cached=False),
    PrefillOptions(cached=False, side="left"),
]


def same(a, b) -> None:
    assert a.tokens == b.tokens and a.finish_reason == b.finish_reason
    assert a.log_probabilities == pytest.approx(b.log_probabilities, abs=1e-9)
    assert a.score == pytest.approx(b.score, abs=1e-9)
    assert (a.alignment is None) == (b.alignment is None)
    if a.alignment is not None:
        assert a.alignment.shape == b.alignment.shape and torch.allclose(a.alignment, b.alignment)


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("name", WRITERS)
def test_a_row_is_the_same_alone_and_in_any_company(name, sampling):
    model = writer(name)
    call = {"max_tokens": 13, "stop": STOP}
    alone = [
        generate(model, GenerationRequest([PROMPTS[row]], sampling, seeds=[40 + row], **given(model, [row]), **call))[0]
        for row in range(len(PROMPTS))
    ]
    for n, prefill in enumerate(PLANS):
        rows = [[0, 1, 2, 3], [3, 2, 0], [2, 1]][n % 3]
        prompts, seeds = [PROMPTS[row] for row in rows], [40 + row for row in rows]
        together = generate(
            model, GenerationRequest(prompts, sampling, seeds=seeds, prefill=prefill, **given(model, rows), **call)
        )
        for row, found in zip(rows, together, strict=True):
            same(found, alone[row])


@pytest.mark.parametrize("name", WRITERS)
def test_greedy_is_the_best_token_of_the_full_forward(name):
    model = writer(name)
    conditions = given(model, [0])
    (found,) = generate(model, GenerationRequest([PROMPTS[0]], max_tokens=11, **conditions))
    text = list(PROMPTS[0])
    for token, chance in zip(found.tokens, found.log_probabilities, strict=True):
        chances = full_logits(model, text, conditions)[-1].log_softmax(-1)
        assert token == chances.argmax() and chance == pytest.approx(chances.max().item(), abs=1e-9)
        text.append(token)
    assert found.finish_reason == "length" and len(found.tokens) == 11


@pytest.mark.parametrize("name", ["window", "window-alibi", "hybrid", "nano-rnn"])
def test_rings_that_have_wrapped(name):
    """100 tokens, a ring of 5 + 64: the oldest keys were overwritten."""
    model = writer(name, length=211)
    together = generate(model, GenerationRequest(PROMPTS, max_tokens=100, stop=STOP[:1]))
    for row, found in enumerate(together):
        same(found, generate(model, GenerationRequest([PROMPTS[row]], max_tokens=100, stop=STOP[:1]))[0])
        same(
            found,
            generate(
                model,
                GenerationRequest([PROMPTS[row]], max_tokens=100, stop=STOP[:1], prefill=PrefillOptions(cached=False)),
            )[0],
        )


def test_a_stream_gives_the_same_as_the_whole():
    model = writer("nano-gpt")
    whole = generate(model, GenerationRequest(PROMPTS, SAMPLED, max_tokens=13, stop=STOP, seeds=3))
    steps = list(stream(model, GenerationRequest(PROMPTS, SAMPLED, max_tokens=13, stop=STOP, seeds=3)))
    for row, found in enumerate(whole):
        own = [step for step in steps if step.row == row]
        assert [s.token for s in own if s.token not in STOP] == found.tokens
        assert [s.finish_reason for s in own] == [None] * (len(own) - 1) + [found.finish_reason]
    assert [s.row for s in steps[:4]] == [0, 1, 2, 3] and {f.finish_reason for f in whole} == {"stop", "length"}


def test_a_consumer_of_a_stream_is_not_in_inference_mode():
    for _ in stream(writer("nano-gpt"), GenerationRequest(PROMPTS, max_tokens=2)):
        assert torch.is_grad_enabled() and not torch.is_inference_mode_enabled()


@pytest.mark.parametrize("name", ["nano-gpt", "nano-gru-additive", "nano-image-text", "hybrid"])
def test_samples_share_the_prompt_and_differ(name):
    model = writer(name)
    call = {"max_tokens": 7, "stop": STOP}
    many = generate(
        model, GenerationRequest(PROMPTS, SAMPLED, samples=3, seeds=9, **given(model, [0, 1, 2, 3]), **call)
    )
    first = generate(model, GenerationRequest(PROMPTS, SAMPLED, seeds=9, **given(model, [0, 1, 2, 3]), **call))
    for row in range(4):
        same(many[3 * row], first[row])
    assert len({tuple(found.tokens) for found in many}) > 6
    for sample in generate(model, GenerationRequest(PROMPTS, GREEDY, samples=2, **given(model, [0, 1, 2, 3]), **call))[
        ::2
    ]:
        assert len(sample.tokens) <= 7


@pytest.mark.parametrize(
    "prefill", [PrefillOptions(), PrefillOptions(cached=False), PrefillOptions(chunk=5, side="left")]
)
def test_a_text_that_is_full_slides(prefill):
    """Length 41: a full text goes on from its newer half, each row at its own time."""
    model = writer("learned")
    prompts = [list(range(3, 33)), [4], [n % 53 for n in range(60)]]
    found = generate(model, GenerationRequest(prompts, max_tokens=50, overflow="slide", prefill=prefill))
    for prompt, one in zip(prompts, found, strict=True):
        text = prompt[-41:]
        for token in one.tokens:
            assert token == full_logits(model, text, {})[-1].argmax()
            text.append(token)
            text = text[-20:] if len(text) > 41 else text


def test_a_text_that_is_too_long_is_refused_or_extends():
    model = writer("alibi")
    with pytest.raises(weft.WeftError, match="a prompt of 7 tokens and 36 new ones, but the model was trained for 41"):
        generate(model, GenerationRequest(PROMPTS, max_tokens=36))
    assert len(generate(model, GenerationRequest(PROMPTS, max_tokens=35))[2].tokens) == 35
    long = generate(model, GenerationRequest([PROMPTS[2]], max_tokens=50, overflow="extend"))[0]
    chances = full_logits(model, [*PROMPTS[2], *long.tokens[:-1]], {})
    assert chances[6:].argmax(-1).tolist() == long.tokens
    with pytest.raises(weft.WeftError, match="positions hold 41"):
        generate(writer("learned"), GenerationRequest([PROMPTS[2]], max_tokens=50, overflow="extend"))


@pytest.mark.parametrize("name", ["nano-gru-additive", "nano-gru-bilinear", "nano-gru-dot"])
def test_alignments_are_those_of_teacher_forcing(name):
    model = writer(name)
    for row, found in enumerate(
        generate(model, GenerationRequest(PROMPTS, max_tokens=9, stop=STOP, **given(model, [0, 1, 2, 3])))
    ):
        source = torch.tensor(given(model, [row])["source"])
        with torch.no_grad():
            out = model(source, torch.tensor([[*PROMPTS[row], *found.tokens]]))
        begin = len(PROMPTS[row]) - 1
        assert found.alignment.shape == (len(found.tokens), source.shape[1])
        assert torch.allclose(found.alignment, out.auxiliary["alignment"][0, begin : begin + len(found.tokens)])


def test_sampled_frequencies_are_the_exact_probabilities():
    """All 25 texts of two tokens: chi-square with 24 degrees of freedom stays below its 99.9 % point, 51.2."""
    model = tiny("nano-gpt")
    sampling = Sampling(temperature=1.5)
    N = 5000
    prompt = [1, 3, 0]
    found = generate(model, GenerationRequest([prompt], sampling, max_tokens=2, samples=N, seeds=11))
    first = (full_logits(model, prompt, {})[-1] / 1.5).softmax(-1)
    chi = 0.0
    for a in range(5):
        second = (full_logits(model, [*prompt, a], {})[-1] / 1.5).softmax(-1)
        for b in range(5):
            expected = N * (first[a] * second[b]).item()
            chi += (sum(one.tokens == [a, b] for one in found) - expected) ** 2 / expected
    assert chi < 51.2


def test_the_next_distribution():
    model = tiny("nano-gpt")
    chances = full_logits(model, [1, 3], {})[-1].softmax(-1)
    found = next_distribution(model, [1, 3], top=3)
    assert [token for token, _ in found] == chances.topk(3).indices.tolist()
    assert [p for _, p in found] == pytest.approx(chances.topk(3).values.tolist())
    assert len(next_distribution(model, [1, 3])) == 5
    assert math.isclose(sum(p for _, p in next_distribution(model, [1], sampling=Sampling(top_k=2))), 1.0)


@pytest.mark.parametrize("name", ["nano-gpt", "nano-rnn", "nano-seq2seq", "nano-image-text"])
def test_first_probabilities_come_from_the_only_prefill(name, monkeypatch):
    model, P = writer(name), len(PROMPTS)
    conditions = given(model, list(range(P)))
    expected = [next_distribution(model, prompt, 3, **given(model, [row])) for row, prompt in enumerate(PROMPTS)]
    calls = []
    for kind in (Unconditioned, ImageConditioned, MemoryConditioned):
        original = kind.call

        def counted(self, tokens, real, state, first, original=original):
            calls.append((tuple(tokens.shape), first))
            return original(self, tokens, real, state, first)

        monkeypatch.setattr(kind, "call", counted)
    request = GenerationRequest(PROMPTS, SAMPLED, max_tokens=5, samples=3, top=3, **conditions)
    searched = GenerationRequest(PROMPTS, max_tokens=5, top=3, **conditions)
    longest = max(map(len, PROMPTS))
    for texts, prefills in (
        (lambda: generate(model, request), [(P, longest)]),
        (lambda: list(chain(*beam_search(model, searched, Beam(3, best=3)))), [(P, longest)]),
        (lambda: speculate(model, request), [(1, len(prompt)) for prompt in PROMPTS]),
    ):
        calls.clear()
        found = texts()
        assert [shape for shape, first in calls if first] == prefills
        assert len(found) == 3 * P
        for n, one in enumerate(found):
            assert [token for token, _ in one.first_probabilities] == [token for token, _ in expected[n // 3]]
            shares = [share for _, share in expected[n // 3]]
            assert [share for _, share in one.first_probabilities] == pytest.approx(shares, abs=1e-10)
    unasked = GenerationRequest(PROMPTS, max_tokens=2, **conditions)
    assert all(one.first_probabilities is None for one in generate(model, unasked) + speculate(model, unasked))


def test_one_seed_per_text():
    model = writer("nano-gpt")
    each = GenerationRequest([[5, 3], [7]], SAMPLED, max_tokens=7, samples=3, seeds=[4, 5, 6, 1, 2, 3])
    found = [one.tokens for one in generate(model, each)]
    alone = [
        generate(model, GenerationRequest([prompt], SAMPLED, max_tokens=7, seeds=[seed]))[0].tokens
        for prompt, seeds in (([5, 3], (4, 5, 6)), ([7], (1, 2, 3)))
        for seed in seeds
    ]
    assert found == alone
    assert [one.tokens for one in speculate(model, each)] == [
        speculate(model, GenerationRequest([prompt], SAMPLED, max_tokens=7, seeds=[seed]))[0].tokens
        for prompt, seeds in (([5, 3], (4, 5, 6)), ([7], (1, 2, 3)))
        for seed in seeds
    ]


def test_a_request_is_frozen_and_does_not_follow_its_lists():
    prompt = [5, 17]
    request = GenerationRequest([prompt], max_tokens=3)
    prompt.append(3)
    assert request.prompts == ((5, 17),)
    with pytest.raises(FrozenInstanceError):
        request.max_tokens = 5


def test_dropout_rests_while_writing_and_comes_back():
    model = weft.build(weft.preset("nano-gpt").replace(dropout=0.5, layers=2, width=32, vocabulary=53), seed=1)
    model.train()
    model.stack.norm.eval()
    one, two = (generate(model, GenerationRequest([[1, 2, 3]], max_tokens=9))[0].tokens for _ in range(2))
    assert one == two
    assert model.training and model.stack.blocks[0].training and not model.stack.norm.training


@pytest.mark.parametrize(
    ("name", "call", "message"),
    [
        ("nano-gpt", {"prompts": [[1], []]}, "prompt 1 is empty: give at least one token"),
        ("nano-gpt", {"prompts": []}, "no prompts: give at least one"),
        ("nano-gpt", {"prompts": [[1]], "max_tokens": 0}, "use at least 1 of each"),
        ("nano-gpt", {"prompts": [[1]], "seeds": [1, 2]}, "2 seeds for 1 prompts"),
        ("nano-gpt", {"prompts": [[1]], "samples": 3, "seeds": [1, 2]}, "2 seeds for 1 prompts"),
        ("nano-gpt", {"prompts": [[1]], "top": -1}, "use 0"),
        ("nano-gpt", {"prompts": [[1]], "overflow": "wrap"}, "choose refuse, slide or extend"),
        ("nano-gpt", {"prompts": [[1]], "source": [[1]]}, "reads no source"),
        ("nano-gpt", {"prompts": [[1]], "images": torch.zeros(1, 3, 12, 12)}, "sees no images"),
        ("nano-seq2seq", {"prompts": [[1]]}, "generates from a source: give `source`"),
        ("nano-seq2seq", {"prompts": [[1]], "source": [[1], [2]]}, "2 sources for 1 prompts"),
    ],
)
def test_errors_say_what_to_do(name, call, message):
    with pytest.raises(weft.WeftError, match=message):
        generate(writer(name), GenerationRequest(**{"max_tokens": 5, **call}))


def test_models_that_cannot_write_are_refused():
    with pytest.raises(weft.WeftError, match="family 'encoder' generates no text"):
        generate(weft.build("nano-encoder", device="meta"), GenerationRequest([[1]]))
    with pytest.raises(weft.WeftError, match="a Linear declares nothing"):
        generate(torch.nn.Linear(2, 2), GenerationRequest([[1]]))
    with pytest.raises(weft.WeftError, match="chunks of 0 tokens"):
        PrefillOptions(chunk=0)
