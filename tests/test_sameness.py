"""The same answer alone or under load: texts, log-probabilities and likeliest tokens, equal bit for bit."""

from __future__ import annotations

import copy
import random
from functools import cache

import pytest
import torch

import weft
from subjects import build, shrink
from weft.foundation.threads import number_of_threads
from weft.inference.decoding.sampling import GREEDY, Sampling
from weft.inference.engine import probe
from weft.inference.engine.engine import Engine, EngineRequest
from weft.inference.engine.reading import ReadingGrid
from weft.inference.fast.native.library import library
from weft.inference.fast.quantize import quantize_model
from writers import VARIANTS, given, lively, writer

pytestmark = pytest.mark.skipif(library() is None, reason="no compiler")

SAMPLED = Sampling(temperature=0.9, top_k=31, top_p=0.97, repetition=1.1)
LENGTH, NEW, CAPACITY = 211, 7, 44
KINDS = {
    "nano-gpt": {},
    "llama-3.2-1b": {},
    "learned": VARIANTS["learned"],
    "window": VARIANTS["window"],
    "sandwich": {"arrangement": "sandwich-norm"},
    "post": {"arrangement": "post-norm"},
    "parallel": {"arrangement": "parallel"},
}


@cache
def model_of(name: str, weights: str):
    """Float32, of odd widths, with an own head."""
    if name == "nano-seq2seq":
        model = copy.deepcopy(writer(name)).float()
    else:
        spec = shrink(weft.preset(name if name in ("nano-gpt", "llama-3.2-1b") else "nano-gpt"))
        model = lively(build(spec.replace(length=LENGTH, head={"kind": "linear"}, **KINDS[name]))).float()
    return model if weights == "float32" else quantize_model(model, weights)


def requests_for(model, count: int, longest: int, seed: int = 0) -> list[EngineRequest]:
    """Prompts of 1 to `longest` tokens, many beginning alike, greedy and sampled, some scored."""
    draw = random.Random(seed)
    shared = [draw.randrange(50) for _ in range(longest)]
    found = []
    for n in range(count):
        length = draw.choice((1, 2, 3, draw.randrange(1, longest + 1), draw.randrange(1, longest + 1)))
        common = draw.randrange(length) if n % 3 else 0
        prompt = [*shared[:common], *(draw.randrange(50) for _ in range(length - common))]
        own = given(model, [n % 4])
        more = {"source": own["source"][0]} if own else {}
        sampling = (GREEDY, SAMPLED)[n % 2]
        found.append(EngineRequest(prompt, sampling, NEW, seed=n, top=n % 3, score_prompt=n % 4 == 0, **more))
    return found


def answer(handle):
    """All that a request was told, as it is."""
    return list(handle), handle.prompt_scores


def alone(model, asked):
    """Each by an engine in which nobody else ever was."""
    return [answer(Engine(model, slots=CAPACITY).submit(request)) for request in asked]


def in_company(model, asked, order: int, **more):
    """In random order, all at once or a few steps apart, beside requests that are cancelled at any point."""
    draw, engine = random.Random(order), Engine(model, **more)
    numbers = list(range(len(asked)))
    draw.shuffle(numbers)
    handles, unwanted = {}, []
    for n in numbers:
        handles[n] = engine.submit(asked[n])
        if draw.random() < 0.4:
            unwanted.append(engine.submit(asked[draw.randrange(len(asked))]))
        for _ in range(draw.choice((0, 0, 0, 1, 2))):
            engine.step()
        if unwanted and draw.random() < 0.6:
            unwanted.pop(draw.randrange(len(unwanted))).cancel()
    return [answer(handles[n]) for n in range(len(asked))]


@pytest.mark.parametrize("weights", ["float32", "int8", "int4"])
@pytest.mark.parametrize("name", [*KINDS, "nano-seq2seq"])
def test_an_answer_has_the_same_bits_alone_and_in_any_company(name, weights):
    if weights == "int4" and name not in ("nano-gpt", "llama-3.2-1b"):
        pytest.skip("two families are enough")
    model = model_of(name, weights)
    asked = requests_for(model, 13, 30 if name == "nano-seq2seq" else 150)
    expected = alone(model, asked)
    prefixes = 0 if name == "nano-seq2seq" else 5
    for order, more in enumerate(({"slots": 3, "prefix": 0}, {"slots": CAPACITY, "prefix": prefixes})):
        found = in_company(model, asked, order, slots=more["slots"], prefixes=more["prefix"])
        assert found == expected


def test_more_texts_than_native_code_prefers_have_the_same_bits():
    """44 at once, where torch would be faster for so many rows."""
    model = model_of("nano-gpt", "float32")
    asked = requests_for(model, 44, 9)
    engine = Engine(model, slots=CAPACITY)
    handles = [engine.submit(request) for request in asked]
    engine.run()
    assert engine.statistics.rows > 32 * engine.statistics.steps / 2
    assert [answer(handle) for handle in handles] == alone(model, asked)


@pytest.mark.parametrize("name", ["nano-gpt", "llama-3.2-1b"])
def test_one_and_two_threads_have_the_same_bits(name):
    model = model_of(name, "float32")
    asked = requests_for(model, 6, 150, seed=3)
    found = []
    for count in (1, 2):
        with number_of_threads(count):
            found.append(in_company(model, asked, 1, slots=4, prefixes=2))
    assert found[0] == found[1]


def test_prefixes_of_other_keys_are_not_found():
    model = model_of("nano-gpt", "float32")
    engine = Engine(model, prefixes=4)
    prompt = [n % 47 for n in range(70)]
    reused = []
    for key in ("", "a", "a", ""):
        engine.submit(EngineRequest(prompt, max_tokens=2, cache_key=key)).result()
        reused.append(engine.statistics.reused_tokens)
    assert reused == [0, 0, 64, 128]


def test_prompts_are_scored_by_the_model_itself():
    model = model_of("nano-gpt", "float32")
    prompt = [n % 47 for n in range(70)]
    engine = Engine(model, slots=2)
    handle = engine.submit(EngineRequest(prompt, max_tokens=0, score_prompt=True, top=3))
    assert handle.result().tokens == [] and handle.status == "done" and engine.statistics.finished == 1
    with torch.no_grad():
        expected = model(torch.tensor([prompt])).logits[0].log_softmax(-1)
    first, *rest = handle.prompt_scores
    assert first == (prompt[0], None, ()) and [one.token for one in rest] == prompt[1:]
    for n, one in enumerate(rest):
        assert one.log_probability == pytest.approx(float(expected[n, one.token]), abs=1e-4)
        best = expected[n].topk(3)
        assert [token for token, _ in one.top] == best.indices.tolist()
        assert [value for _, value in one.top] == pytest.approx(best.values.tolist(), abs=1e-4)
    (token, *_) = engine.submit(EngineRequest(prompt, Sampling(0.5, 2), 3, top=2))
    assert token.top[0][1] >= token.log_probability - 1e-6 and len(token.top) == 2
    with pytest.raises(weft.WeftError, match="0 are enough with score_prompt"):
        engine.submit(EngineRequest(prompt, max_tokens=0))
    with pytest.raises(weft.WeftError, match="top -1"):
        engine.submit(EngineRequest(prompt, top=-1))


def test_what_is_promised(monkeypatch):
    assert Engine(model_of("nano-gpt", "float32")).exact and Engine(model_of("nano-seq2seq", "float32")).exact
    assert not Engine(writer("nano-moe")).exact and not Engine(writer("nano-gpt")).exact  # no native step


def test_where_products_depend_on_company_prompts_are_read_one_by_one(monkeypatch):
    """Then the pieces of each are computed alone, so company still changes nothing."""
    monkeypatch.setattr("weft.inference.engine.reading.rows_are_alike", lambda shapes: False)
    model = model_of("nano-gpt", "float32")
    asked = requests_for(model, 7, 150)
    assert in_company(model, asked, 1, slots=3, prefixes=2) == alone(model, asked)


def test_the_probe_notices_products_that_depend_on_company(monkeypatch):
    assert probe.rows_are_alike([(7, 13), (41, 30)])
    real = torch.nn.functional.linear
    monkeypatch.setattr(probe.F, "linear", lambda x, weight: real(x, weight) * (1 + 1e-6 * (len(x) % 2)))
    probe._shape_is_alike.cache_clear()
    assert not probe.rows_are_alike([(7, 13)])
    probe._shape_is_alike.cache_clear()


def test_pieces_end_on_a_grid_of_the_prompts_own():
    grid = ReadingGrid(32)
    assert [grid.next_end(at, 70) for at in (0, 32, 64)] == [32, 64, 70]
    assert [grid.last_end(n) for n in (0, 31, 32, 70)] == [0, 0, 32, 64]
    whole = ReadingGrid(8, 19)  # the first 19 tokens see each other
    assert [whole.next_end(0, n) for n in (5, 19, 24, 40)] == [5, 19, 24, 24]
    assert [whole.last_end(n) for n in (16, 19, 24, 31)] == [0, 0, 24, 24]
