"""Speculation of several texts at once, in batches and in the engine: every text is that of `generate`."""

from __future__ import annotations

import copy
from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import weft
from weft.data.tokenizers.tokenizer import train_tokenizer
from weft.inference.decoding import look_ahead
from weft.inference.decoding.conditioning import condition
from weft.inference.decoding.detokenizer import Detokenizer
from weft.inference.decoding.drafts import PromptLookup, Proposal
from weft.inference.decoding.generate import generate, stream
from weft.inference.decoding.request import GenerationRequest
from weft.inference.decoding.sampling import GREEDY, Sampling, TokenSampler, choose_each
from weft.inference.decoding.sessions import PrefillOptions, RewindableBatch, RewindableSession
from weft.inference.decoding.speculative import speculate, stream_speculative
from weft.inference.engine.engine import Engine, EngineRequest
from weft.inference.engine.running_batch import RunningBatch
from weft.inference.fast.native.library import library
from weft.inference.fast.optimized import exact_rows
from weft.inference.fast.quantize import quantize_model
from writers import SOURCES, writer
from writers import given as conditions_of

SAMPLINGS = [GREEDY, Sampling(temperature=0.7, top_k=11), Sampling(temperature=0.0, repetition=1.4), Sampling(1.1, 7)]
EXACT = ["nano-gpt", "window", "learned", "llama-3.2-1b", "nano-seq2seq", "int8"]
OTHERS = ["hybrid", "nano-rnn", "alibi", "nano-moe", "nano-gru-additive", "nano-image-text"]
needs_compiler = pytest.mark.skipif(library() is None, reason="no compiler")


@cache
def exact(name):
    """In float32, by the native step."""
    model = copy.deepcopy(writer("nano-gpt" if name == "int8" else name)).float()
    return quantize_model(model) if name == "int8" else model


@pytest.fixture(autouse=True, scope="module")
def everything_pays():
    """All that is found is judged."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(look_ahead.StepCost, "of", lambda self, rows: 1.0)
        patch.setattr(look_ahead.StepCost, "extra", 0.0)
        yield


prompts = st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=9), min_size=1, max_size=4)
requests = st.fixed_dictionaries(
    {
        "prompts": prompts,
        "sampling": st.sampled_from(SAMPLINGS),
        "max_tokens": st.sampled_from([1, 2, 23]),
        "stop": st.sampled_from([[], [2, 11, 23, 37]]),
        "seeds": st.integers(0, 5),
        "samples": st.integers(1, 3),
        "step_top": st.sampled_from([0, 3]),
        "top": st.sampled_from([0, 2]),
        "prefill": st.sampled_from([PrefillOptions(side="left"), PrefillOptions(), PrefillOptions(chunk=3)]),
    }
)


def of(model, fields):
    rows = [row % len(SOURCES) for row in range(len(fields["prompts"]))]
    return GenerationRequest(**{**fields, **conditions_of(model, rows)})


def same_texts(found, expected, tolerance=1e-9):
    assert [(one.tokens, one.finish_reason, one.text) for one in found] == [
        (one.tokens, one.finish_reason, one.text) for one in expected
    ]
    for one, other in zip(found, expected, strict=True):
        assert one.log_probabilities == pytest.approx(other.log_probabilities, abs=tolerance)
        for a, b in ((one.choices, other.choices), (one.first_probabilities, other.first_probabilities)):
            assert (a is None) == (b is None)
        for step, own in zip(one.choices or [], other.choices or [], strict=True):
            assert [token for token, _ in step.probabilities] == [token for token, _ in own.probabilities]


@needs_compiler
@pytest.mark.parametrize("name", EXACT)
@settings(max_examples=25, deadline=None)
@given(fields=requests)
def test_a_batch_has_the_texts_of_generate(name, fields):
    model = exact(name)
    assert exact_rows(model) >= 32
    request = of(model, fields)
    found = speculate(model, request)
    same_texts(found, generate(model, request), 1e-6)
    assert len({one.calls for one in found}) == 1  # all of them verified together


@pytest.mark.parametrize("name", OTHERS)
@settings(max_examples=7, deadline=None)
@given(fields=requests)
def test_texts_that_are_verified_one_by_one_are_those_of_generate(name, fields):
    model = writer(name)
    request = of(model, fields)
    same_texts(speculate(model, request), generate(model, request))


@needs_compiler
def test_a_batch_saves_calls_and_each_text_is_the_same_in_any_company():
    model = exact("window")
    both = GenerationRequest([[1, 2, 3, 1, 2, 3, 1], [5]], max_tokens=31, seeds=7)
    found = speculate(model, both)
    assert found[0].calls < 31 and sum(one.accepted for one in found) > 0
    for row, one in enumerate(found):
        alone = GenerationRequest([both.prompts[row]], max_tokens=31, seeds=7 + row)
        assert speculate(model, alone)[0].tokens == generate(model, alone)[0].tokens == one.tokens


@needs_compiler
@pytest.mark.parametrize(("prompts", "samples"), [(41, 1), (19, 2), (2, 17)])
def test_more_texts_than_a_step_has_room_for(prompts, samples):
    model = exact("nano-gpt")
    texts = [[n % 5, 1, n % 7, 1] for n in range(prompts)]
    request = GenerationRequest(texts, SAMPLINGS[1], max_tokens=5, samples=samples)
    found = speculate(model, request)
    assert [one.tokens for one in found] == [one.tokens for one in generate(model, request)]


@needs_compiler
@pytest.mark.parametrize("sampling", SAMPLINGS[:2], ids=["greedy", "sampled"])
def test_a_stream_of_several_texts_has_the_steps_of_each(sampling):
    model, tokenizer = exact("nano-gpt"), train_tokenizer("characters", ["abcdefghijklmnopqrstuvwxyz .,!?-;:'\"()"])
    request = GenerationRequest(
        [[1, 2, 1], [3], [4, 4, 4, 4]], sampling, max_tokens=23, stop=[2], detokenizer=Detokenizer(tokenizer, ["z"])
    )
    steps, found = list(stream(model, request)), list(stream_speculative(model, request))
    for row in range(3):
        own = [[(s.token, s.finish_reason, s.text) for s in each if s.row == row] for each in (steps, found)]
        assert own[0] == own[1]


def test_a_session_reads_one_text():
    session = RewindableSession(condition(writer("nano-gpt"), 1))
    with pytest.raises(weft.WeftError, match="2 texts by a session that reads one: leave `session` out"):
        next(stream_speculative(writer("nano-gpt"), GenerationRequest([[1], [2]], max_tokens=5), session))


# Drafts.


@settings(max_examples=200)
@given(
    texts=st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=9), min_size=1, max_size=5),
    cuts=st.lists(st.integers(1, 9), min_size=5, max_size=5),
    ngram=st.integers(1, 4),
    most=st.integers(1, 5),
)
def test_a_draft_that_meets_other_texts_forgets_the_last(texts, cuts, ngram, most):
    """Equal, shorter, longer, with a common beginning: a proposal is that of a new draft."""
    used = PromptLookup(5, ngram)
    for text, cut in zip(texts, cuts, strict=False):
        for own in (text, text, text[:cut], [*text[:cut], *texts[0]], text + text):
            assert used.propose(own, most) == PromptLookup(5, ngram).propose(own, most)


@given(accepted=st.lists(st.integers(0, 4), min_size=1, max_size=30), seed=st.integers(0, 9))
@settings(deadline=None, max_examples=11)
def test_random_numbers_that_were_not_used_are_the_next_ones(accepted, seed):
    """Proposals of four tokens, of which some are right: as if each token were chosen alone."""
    sampling, draw = Sampling(temperature=1.3, repetition=1.2), torch.Generator().manual_seed(seed)
    logits = torch.randn(151, 13, generator=draw, dtype=torch.float64)
    alone, ahead = (TokenSampler(sampling, seed, [1], 13, logits.device) for _ in range(2))
    straight = [choose_each(logits[n : n + 1], [alone])[0][0] for n in range(151)]
    at, found = 0, []
    for right in accepted:
        known = [choice.token for choice in straight[at : at + right]]
        wrong = (straight[at + right].token + 1) % 13
        (came,) = choose_each(logits[at : at + 5], [ahead], [[*known, *[wrong] * (4 - right)]])
        assert len(came) == right + 1
        found += came
        at += right + 1
    assert [c.token for c in found] == [c.token for c in straight[:at]]
    assert [c.log_probability for c in found] == pytest.approx([c.log_probability for c in straight[:at]], abs=1e-12)


# States.


@pytest.mark.parametrize("name", ["nano-gpt", "window", "alibi"])
@pytest.mark.parametrize("begun", [4, 97], ids=["short", "a ring that has wrapped"])
def test_rows_take_back_their_own_number_of_tokens(name, begun):
    model = writer(name, length=211)
    draw = torch.Generator().manual_seed(3)
    tokens = torch.randint(0, 47, (3, 150), generator=draw)
    with torch.no_grad():
        state = model.make_state(3)
        model(tokens[:, :begun], state=state)
        lengths = [begun] * 3
        for counts, back in (((5, 5, 5), (0, 3, 5)), ((1, 7, 3), (1, 2, 0)), ((2, 2, 2), (1, 1, 1))):
            real = torch.arange(max(counts)) < torch.tensor(counts)[:, None]
            model(torch.randint(0, 47, real.shape, generator=draw), mask=real, state=state)
            state.rollback(list(counts))
            part = torch.stack([tokens[n, lengths[n] : lengths[n] + max(counts)] for n in range(3)])
            logits = model(part, mask=real, state=state).logits
            for n in range(3):
                whole = model(tokens[n : n + 1, : lengths[n] + counts[n]]).logits[0, -counts[n] :]
                assert torch.allclose(logits[n, : counts[n]], whole, atol=1e-10, rtol=0)
            state.rollback(list(back))
            lengths = [length + own - taken for length, own, taken in zip(lengths, counts, back, strict=True)]
    with pytest.raises(weft.WeftError, match="cannot take 300 tokens back"):
        state.rollback([1, 300, 2])


@needs_compiler
@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize("side", ["left", "right"])
def test_padded_rows_by_the_native_step_are_those_of_each_row_alone(name, side):
    model = exact(name)
    rows = [0, 1, 2]
    source = conditions_of(model, rows).get("source")
    batch = RewindableBatch(condition(model, 3, source), PrefillOptions(side=side))
    texts, proposals = [[5, 1], [7, 2, 3], [11]], [[4, 5, 6], [], [9]]
    batch.begin([text[:-1] or [3] for text in texts])
    texts = [text if len(text) > 1 else [3, *text] for text in texts]
    logits = batch.verify(texts, proposals).split([len(each) + 1 for each in proposals])
    for n in rows:
        alone = RewindableBatch(condition(model, 1, source and source[n : n + 1]), PrefillOptions(side=side))
        alone.begin([texts[n][:-1]])
        for m in range(len(proposals[n]) + 1):
            one = alone.verify([texts[n] + proposals[n][:m]], [[]])
            assert torch.allclose(one[0], logits[n][m], atol=1e-5)


# The engine.


@needs_compiler
@pytest.mark.parametrize("name", [*EXACT, "float64 window", "float64 alibi", "hybrid", "nano-moe", "nano-image-text"])
@settings(max_examples=9, deadline=None)
@given(
    asked=st.lists(
        st.tuples(
            st.lists(st.integers(0, 3), min_size=1, max_size=9),
            st.sampled_from(SAMPLINGS),
            st.sampled_from([1, 2, 23]),
            st.integers(0, 4),
            st.sampled_from([None, None, None, 1, 3]),
        ),
        min_size=1,
        max_size=7,
    ),
    slots=st.integers(1, 5),
    prefixes=st.sampled_from([0, 2]),
)
def test_texts_of_the_engine_are_those_of_generate(name, asked, slots, prefixes):
    """They come at any time (`wait` steps apart), some are cancelled after a few tokens."""
    model = exact(name) if name in EXACT else writer(name.split()[-1])
    prefixes = 0 if model.declares().seq2seq else prefixes
    engine = Engine(model, slots=slots, prefill_tokens=5, prefixes=prefixes, speculative=True)
    kept = []
    for n, (prompt, sampling, count, wait, cancelled) in enumerate(asked):
        own = conditions_of(model, [n % len(SOURCES)])
        more = {{"source": "source", "images": "image"}[key]: value[0] for key, value in own.items()}
        handle = engine.submit(EngineRequest(prompt, sampling, count, stop=(2, 37), seed=n, **more))
        kept.append((handle, GenerationRequest([prompt], sampling, count, stop=(2, 37), seeds=n, **own), cancelled))
        for _ in range(wait):
            engine.step()
        for other, _, limit in kept:
            if limit is not None and len(other._steps) >= limit:
                other.cancel()
    engine.run()
    for handle, request, _ in kept:
        (expected,) = generate(model, request)
        given_so_far = [step.token for step in handle._steps]
        whole = expected.tokens + [token for token in given_so_far[len(expected.tokens) :] if token in (2, 37)]
        assert given_so_far == whole[: len(given_so_far)]
        if handle.status == "done":
            # `generate` reads prompts in other pieces; activations rounded to int8 make more of the last bits.
            same_texts([handle.result()], [expected], 2e-3 if name == "int8" else 1e-5)
        else:
            assert handle.status == "cancelled"
    assert engine.statistics.accepted <= engine.statistics.proposed and not engine._batch.slots.rows


@needs_compiler
def test_the_engine_accepts_proposals_and_needs_fewer_steps(monkeypatch):
    model = exact("window")
    prompt, texts = [1, 2, 3, 1, 2, 3, 1], []
    for speculative in (False, True):
        engine = Engine(model, slots=3, speculative=speculative)
        handles = [engine.submit(EngineRequest(prompt, max_tokens=31)) for _ in range(3)]
        engine.run()
        texts.append([handle.result().tokens for handle in handles])
        counts = engine.statistics
        assert counts.generated_tokens == 93
        assert (counts.accepted > 0 and counts.steps < 30) if speculative else (counts.proposed == 0)
    assert texts[0] == texts[1]
    engine = Engine(model)
    engine.submit(EngineRequest(prompt, max_tokens=31)).result()
    assert engine.statistics.proposed == 0  # too small a model to look up unasked
    monkeypatch.setattr("weft.inference.decoding.speculative.WORTH", 0)
    for sampling in SAMPLINGS[:2]:
        engine = Engine(model)
        engine.submit(EngineRequest(prompt, sampling, max_tokens=31)).result()
        assert (engine.statistics.proposed > 0) == sampling.greedy


@needs_compiler
def test_numbers_that_are_none_concern_only_those_who_get_there(monkeypatch):
    """A proposal leads to NaN: the text that does not go there is unharmed, and what it read is wiped."""
    model = copy.deepcopy(exact("nano-gpt"))
    plain = generate(model, GenerationRequest([[5, 7, 5]], max_tokens=9))[0].tokens
    bad = next(token for token in range(47) if token not in [*plain, 5, 7])
    model.embedding.register_forward_hook(
        lambda _, given, out: out.masked_fill((given[0] == bad)[..., None], float("nan"))
    )
    engine, wiped = Engine(model, slots=2, speculative=True), []
    monkeypatch.setattr(PromptLookup, "propose", lambda self, text, most: Proposal([bad, 1][:most], kind=4))
    slots = engine._batch.slots
    wipe = slots.wipe_after
    monkeypatch.setattr(slots, "wipe_after", lambda slot, count: wiped.append(count) or wipe(slot, count))
    assert engine.submit(EngineRequest([5, 7, 5], max_tokens=9)).result().tokens == plain
    assert wiped and all(block.isfinite().all() for block in slots._blocks())


@needs_compiler
def test_an_engine_that_keeps_what_was_not_accepted_is_noticed(monkeypatch):
    model = exact("nano-gpt")
    request = GenerationRequest([[1, 2, 3, 1, 2, 3, 1]], max_tokens=31)
    plain = generate(model, request)[0].tokens
    monkeypatch.setattr(RunningBatch, "_keep_read_tokens", lambda self, read, kept, logits: None)
    engine = Engine(model, speculative=True)
    with pytest.raises((AssertionError, weft.WeftError)):
        assert engine.submit(EngineRequest(request.prompts[0], max_tokens=31)).result().tokens == plain
