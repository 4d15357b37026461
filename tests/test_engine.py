"""The batching engine: a text is the same alone and in any company; fair, bounded, cancellable; errors stay apart."""

from __future__ import annotations

import copy
import random
import threading
from functools import cache

import pytest
import torch

import weft
from subjects import shrink
from weft.data.tokenizers.tokenizer import train_tokenizer
from weft.inference.decoding.conditioning import encode
from weft.inference.decoding.detokenizer import Detokenizer
from weft.inference.decoding.generate import generate, stream
from weft.inference.decoding.request import GenerationRequest
from weft.inference.decoding.sampling import GREEDY, Sampling, TokenSampler, choose_each, choose_tokens
from weft.inference.decoding.sessions import PrefillOptions
from weft.inference.engine.engine import Cancelled, Engine, EngineRequest, EngineStopped, QueueFull
from weft.inference.fast.native.library import library
from weft.inference.fast.quantize import quantize_model
from writers import PROMPTS, WRITERS, given, writer

STOP = (2, 11, 23, 29, 37, 43)
SAMPLED = Sampling(temperature=1.3, top_k=31, top_p=0.97, min_p=0.001, repetition=1.1)
SAMPLINGS = [GREEDY, SAMPLED, Sampling(temperature=0.0, repetition=1.4), Sampling(top_k=5)]
LONG = [(7 * n + 3) % 47 for n in range(29)]


def request(model, row, sampling=GREEDY, **more):
    conditions = {"source": "source", "images": "image"}
    own = {conditions[name]: value[0] for name, value in given(model, [row]).items()}
    return EngineRequest(PROMPTS[row], sampling, **{"max_tokens": 13, "stop": STOP, "seed": 40 + row, **own, **more})


@cache
def alone(name, row, sampling=GREEDY, length=41, max_tokens=13):
    model = writer(name, length=length) if length != 41 else writer(name)
    call = {"max_tokens": max_tokens, "stop": STOP, "seeds": [40 + row], **given(model, [row])}
    return generate(model, GenerationRequest([PROMPTS[row]], sampling, **call))[0]


def plainly(model, prompt, **more):
    return generate(model, GenerationRequest([prompt], **more))[0]


def same(a, b) -> None:
    assert a.tokens == b.tokens and a.finish_reason == b.finish_reason and a.text == b.text
    assert a.log_probabilities == pytest.approx(b.log_probabilities, abs=1e-10)
    assert a.score == pytest.approx(b.score, abs=1e-10)
    assert (a.alignment is None) == (b.alignment is None)
    if a.alignment is not None:
        assert a.alignment.shape == b.alignment.shape and torch.allclose(a.alignment, b.alignment, atol=1e-10)


SIZES = [(3, 3), (5, 1000), (1, 1), (7, 20)]
TRAFFIC = [(name, *SIZES[n % 2]) for n, name in enumerate(WRITERS)] + [
    (name, *SIZES[2 + n % 2]) for n, name in enumerate(WRITERS)
]


@pytest.mark.parametrize(("name", "slots", "tokens"), TRAFFIC)
def test_a_text_is_the_same_alone_and_in_any_traffic(name, slots, tokens):
    """They come in any order at any time; others come, are cancelled at any point of their way, and leave."""
    model, draw = writer(name), random.Random(slots)
    engine = Engine(model, slots=slots, prefill_tokens=tokens)
    asked = [(row, SAMPLINGS[n]) for row in range(4) for n in range(4)][:: 1 if slots > 3 else 2]
    draw.shuffle(asked)
    wanted, unwanted = [], []
    for row, sampling in asked:
        for _ in range(draw.randrange(3)):
            unwanted.append(engine.submit(request(model, draw.randrange(4), SAMPLED, seed=draw.randrange(9))))
        wanted.append((row, sampling, engine.submit(request(model, row, sampling))))
        for _ in range(draw.randrange(4)):
            engine.step()
        if unwanted:
            unwanted.pop(draw.randrange(len(unwanted))).cancel()
    for handle in unwanted[::2]:
        handle.cancel()
    for row, sampling, handle in wanted:
        same(handle.result(), alone(name, row, sampling))
    engine.run()
    counts = engine.statistics
    assert counts.waiting == counts.prefilling == counts.decoding == counts.failed == 0 and 0 < counts.occupancy <= 1
    assert {row.filled for row in engine._batch.slots.rows} == set()


@pytest.mark.parametrize("name", ["window", "window-alibi", "hybrid", "nano-rnn"])
def test_rings_that_have_wrapped(name):
    model = writer(name, length=211)
    engine = Engine(model, slots=2, prefill_tokens=5)
    handles = [engine.submit(request(model, row, SAMPLED, max_tokens=100)) for row in (0, 1, 2, 3)]
    for row, handle in enumerate(handles):
        same(handle.result(), alone(name, row, SAMPLED, 211, 100))


@pytest.mark.parametrize("name", ["nano-gpt", "learned", "llama-3.2-1b", "nano-seq2seq", "nano-moe", "window"])
@pytest.mark.parametrize("weights", ["float32", "int8"])
def test_in_float32_and_int8_too(name, weights):
    """The native step and packed prompts run here; tokens agree, since their logits are far apart.

    Activations that are rounded to int8 make more of the last bits, in which `generate` reads prompts otherwise.
    """
    model = copy.deepcopy(writer(name)).float()
    model = quantize_model(model) if weights == "int8" else model
    engine = Engine(model, slots=3, prefill_tokens=4)
    handles = [engine.submit(request(model, row)) for row in (0, 1, 2, 3)]
    for row, handle in enumerate(handles):
        found, expected = handle.result(), plainly(model, PROMPTS[row], max_tokens=13, stop=STOP, **given(model, [row]))
        assert found.tokens == expected.tokens
        assert found.log_probabilities == pytest.approx(
            expected.log_probabilities, abs=1e-4 if weights == "float32" else 2e-3
        )


def test_a_memory_may_be_given_in_place_of_a_source():
    model = writer("nano-gru-additive")
    engine = Engine(model, slots=3)
    for side in ("right", "left"):
        memory = encode(model, given(model, [0, 1])["source"], side)
        own = {row: engine.submit(request(model, row, source=memory.reorder(torch.tensor([row])))) for row in (0, 1)}
        for row, handle in own.items():
            same(handle.result(), alone("nano-gru-additive", row))


def test_images_and_text_alone_share_an_image_text_decoder():
    model = writer("nano-image-text")
    engine = Engine(model, slots=4)
    handles = [engine.submit(request(model, row, image=None) if row % 2 else request(model, row)) for row in range(4)]
    for row in (0, 2):
        same(handles[row].result(), alone("nano-image-text", row))
    for row in (1, 3):
        same(handles[row].result(), plainly(model, PROMPTS[row], max_tokens=13, stop=STOP))


# Fair: a long prompt holds nobody up; first come, first served.


def test_a_long_prompt_is_read_in_parts_while_others_write():
    model = writer("learned")
    engine = Engine(model, slots=3, prefill_tokens=4)
    short = engine.submit(EngineRequest([5, 1], max_tokens=20))
    engine.step()
    long = engine.submit(EngineRequest(LONG, max_tokens=3))
    next_one = engine.submit(EngineRequest([9], max_tokens=3))
    for written in range(3, 3 + 7):
        read = engine.statistics.prompt_tokens
        engine.step()
        assert len(short._steps) == written and engine.statistics.prompt_tokens - read <= 4
        assert (long.status, next_one.status) == ("prefilling", "waiting")
    engine.step()
    assert (long.status, next_one.status) == ("decoding", "decoding") and engine.statistics.prompt_tokens == 2 + 29 + 1
    same(long.result(), plainly(model, LONG, max_tokens=3, prefill=PrefillOptions(chunk=4)))
    same(short.result(), plainly(model, [5, 1], max_tokens=20))


def test_first_come_first_served():
    engine = Engine(writer("nano-gpt"), slots=2, prefill_tokens=3)
    handles = [engine.submit(EngineRequest(PROMPTS[n % 4], max_tokens=2 + n % 3)) for n in range(9)]
    begun = []
    while engine.step():
        begun += [t.number for t in handles if t.status != "waiting" and t.number not in begun]
    assert begun == list(range(9))


@pytest.mark.skipif(library() is None, reason="no compiler")
def test_short_prompts_are_read_together_and_a_step_changes_no_state_without_need():
    model = copy.deepcopy(writer("nano-gpt")).float()
    engine = Engine(model, slots=5, prefill_tokens=100)
    calls = []
    counted = engine._batch._read
    engine._batch._read = lambda pieces: calls.append(len(pieces)) or counted(pieces)
    handles = [engine.submit(EngineRequest(PROMPTS[row], max_tokens=9 - row)) for row in (0, 1, 2, 3)]
    engine.step()
    assert calls == [1, 3]  # the very first one alone
    slots = engine._batch.slots
    blocks, state = [block.data_ptr() for block in slots._blocks()], slots.state
    engine.step()
    assert slots.state is state
    engine.run()
    assert [block.data_ptr() for block in slots._blocks()] == blocks
    assert engine.statistics.steps == 8 and engine.statistics.rows == 8 + 7 + 6 + 5
    assert [len(handle.result().tokens) for handle in handles] == [9, 8, 7, 6]


# Shared prefixes.


@pytest.mark.parametrize("name", ["nano-gpt", "learned", "window", "hybrid", "nano-rnn", "nano-conv", "linear"])
def test_shared_beginnings_are_read_once(name):
    model, draw = writer(name), random.Random(1)
    engine = Engine(model, slots=3, prefill_tokens=7, prefixes=3)
    head = LONG[:17]
    prompts = [[*head, *(draw.randrange(47) for _ in range(draw.randrange(1, 6)))] for _ in range(5)]
    handles = [engine.submit(EngineRequest(p, SAMPLED, 9, seed=n, shared=17)) for n, p in enumerate(prompts)]
    for n, (prompt, handle) in enumerate(zip(prompts, handles, strict=True)):
        same(handle.result(), plainly(model, prompt, sampling=SAMPLED, max_tokens=9, seeds=n))
    assert engine.statistics.reused_tokens >= 4 * 14  # prompts are read in pieces of 7
    assert engine.statistics.prompt_tokens + engine.statistics.reused_tokens == sum(map(len, prompts))
    assert len(engine._batch.prefix_cache.entries) <= 3
    engine = Engine(model, prefixes=2, prefill_tokens=8)
    chat = [*LONG[:13], *engine.submit(EngineRequest(LONG[:13], max_tokens=9)).result().tokens, 1, 2]
    same(engine.submit(EngineRequest(chat, max_tokens=5)).result(), plainly(model, chat, max_tokens=5))
    assert engine.statistics.reused_tokens == 8  # of the first prompt; what was decoded has other bits


def test_any_common_beginning_is_shared_where_keys_can_be_cut():
    model = writer("nano-gpt")
    engine = Engine(model, slots=2, prefixes=2, prefill_tokens=4)
    engine.submit(EngineRequest(LONG, max_tokens=2)).result()
    for length in (5, 11, 29):
        prompt = [*LONG[:length], 50, 51][:29]
        before = engine.statistics.reused_tokens
        same(engine.submit(EngineRequest(prompt, max_tokens=6)).result(), plainly(model, prompt, max_tokens=6))
        assert engine.statistics.reused_tokens - before == min(length, 28) // 4 * 4


def test_prompts_that_are_mostly_known_begin_together():
    engine = Engine(writer("nano-gpt"), slots=5, prefill_tokens=12, prefixes=1)
    engine.submit(EngineRequest(LONG, max_tokens=2)).result()
    handles = [engine.submit(EngineRequest([*LONG[:26], n], max_tokens=3)) for n in range(4)]
    engine.step()
    assert [handle.status for handle in handles] == ["decoding"] * 4


def test_rings_that_have_wrapped_are_shared_whole_only():
    model = writer("hybrid", length=211)
    engine = Engine(model, slots=2, prefixes=2, prefill_tokens=16)
    head = [(5 * n + 1) % 47 for n in range(90)]
    engine.submit(EngineRequest(head, max_tokens=1)).result()
    for prompt, shared in (([*head, 3, 4], 80), ([*head[:85], 1, 2], 80), ([*head[:70], 1, 2], 0)):
        before = engine.statistics.reused_tokens
        same(engine.submit(EngineRequest(prompt, max_tokens=9)).result(), plainly(model, prompt, max_tokens=9))
        assert engine.statistics.reused_tokens - before == shared


def test_a_beginning_is_shared_with_its_own_image_only():
    model = writer("nano-image-text")
    engine = Engine(model, slots=2, prefixes=4, prefill_tokens=5)
    for row, shared in ((0, 0), (1, 0), (0, 5), (1, 5)):
        image, before = given(model, [row])["images"], engine.statistics.reused_tokens
        handle = engine.submit(EngineRequest([*PROMPTS[2][:5], row], max_tokens=7, image=image[0]))
        same(handle.result(), plainly(model, [*PROMPTS[2][:5], row], max_tokens=7, images=image))
        assert engine.statistics.reused_tokens - before == shared
    same(engine.submit(EngineRequest(PROMPTS[2], max_tokens=7)).result(), plainly(model, PROMPTS[2], max_tokens=7))


# Handles.


def test_a_handle_gives_the_steps_of_a_stream_and_the_text():
    model, text = (
        writer("nano-gpt"),
        Detokenizer(train_tokenizer("characters", ["abcdefghijklmnopqrstuvwxyz .,!?-;:'\"()"])),
    )
    many = {
        "sampling": SAMPLED,
        "max_tokens": 30,
        "detokenizer": text,
        "stop": [41, 42, 43, 44, 45, 46, 47, 48, 49, 50, 51, 52],
    }
    engine = Engine(model, slots=2)
    whole = generate(model, GenerationRequest([PROMPTS[0]], seeds=[8], **many))[0]
    assert whole.text and len(whole.tokens) > 3
    stopping = {**many, "detokenizer": Detokenizer(text.tokenizer, [whole.text[2:4]])}
    for call in (many, stopping):
        handle = engine.submit(EngineRequest(PROMPTS[0], seed=8, **call))
        expected = list(stream(model, GenerationRequest([PROMPTS[0]], seeds=[8], **call)))
        found = list(handle)
        assert [s[:2] + s[3:] for s in found] == [s[:2] + s[3:] for s in expected]
        assert list(handle) == found and handle.given(1) == found[1:]
        assert "".join(handle.pieces()) == handle.result().text
        same(handle.result(), generate(model, GenerationRequest([PROMPTS[0]], seeds=[8], **call))[0])
    assert handle.result().text == whole.text[:2] and handle.result().finish_reason == "stop"
    with pytest.raises(weft.WeftError, match="give it a `detokenizer`"):
        engine.submit(request(model, 0)).pieces()


def test_waiting_has_an_end():
    with pytest.raises(TimeoutError, match="request 0 is not finished after 0 seconds"):
        Engine(writer("nano-gpt")).submit(request(writer("nano-gpt"), 0)).result(timeout=0)


@pytest.mark.parametrize("name", ["nano-gpt", "hybrid", "nano-seq2seq"])
def test_cancelled_wherever_it_is(name):
    model = writer(name)
    engine = Engine(model, slots=2, prefill_tokens=2)
    handles = [engine.submit(request(model, row, stop=())) for row in (0, 1, 2, 3)]
    with handles[3] as waiting:
        assert waiting.status == "waiting" and engine.statistics.waiting == 4
    assert engine.statistics.waiting == 3 and waiting.status == "cancelled" and not waiting.cancel()
    while handles[1].status != "decoding":
        engine.step()
    while handles[2].status != "prefilling":
        handles[0].cancel()
        engine.step()
    handles[2].cancel()
    assert len(handles[0]._steps) > 0
    with pytest.raises(Cancelled, match="request 0 was cancelled"):
        list(handles[0])
    for row in (0, 2):
        again = engine.submit(request(model, row))
        same(again.result(), alone(name, row))
    assert len(handles[1].result().tokens) == 13 and not handles[1].cancel()
    assert engine.statistics.cancelled == 3 and engine.statistics.finished == 3


# Bounded.


def test_a_full_queue_refuses():
    model = writer("nano-gpt")
    engine = Engine(model, slots=2, queue_size=1)
    handles = [engine.submit(request(model, row)) for row in (0, 1, 2)]
    with pytest.raises(QueueFull, match="3 requests are open, but this engine generates 2 at once and lets 1 wait"):
        engine.submit(request(model, 3))
    handles[1].cancel()
    last = engine.submit(request(model, 3))
    engine.run()
    same(last.result(), alone("nano-gpt", 3))
    assert engine.statistics.refused == 1


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("nano-gpt", {"prompt": []}, "a prompt of at least one token"),
        ("nano-gpt", {"max_tokens": 0}, "max_tokens of at least 1"),
        ("nano-gpt", {"prompt": [3, 53]}, "token 53, but the vocabulary has 0 to 52"),
        ("nano-gpt", {"prompt": [-1, 5]}, "token -1"),
        (
            "nano-gpt",
            {"prompt": LONG, "max_tokens": 14},
            "29 tokens and 14 new ones, but this engine holds 41",
        ),
        ("nano-gpt", {"shared": 4}, "4 shared tokens of a prompt of 3"),
        ("nano-gpt", {"source": [1]}, "reads no source"),
        ("nano-gpt", {"image": torch.zeros(3, 12, 12)}, "sees no images"),
        ("nano-image-text", {"image": torch.zeros(1, 3, 12, 12)}, "an image is .channels, height, width."),
        ("nano-seq2seq", {"source": None}, "generates from a source: give `source`"),
        ("nano-seq2seq", {"source": []}, "a source of 0 tokens"),
        ("nano-seq2seq", {"source": [1] * 42}, "a source of 42 tokens, but this engine takes 1 to 41"),
    ],
)
def test_what_can_never_be_done_is_refused_at_once(name, changes, message):
    model = writer(name)
    engine = Engine(model)
    asked = request(model, 0)
    with pytest.raises(weft.WeftError, match=message):
        engine.submit(EngineRequest(**{**vars(asked), **changes}))
    same(engine.submit(asked).result(), alone(name, 0))


def test_engines_that_make_no_sense_are_refused():
    with pytest.raises(weft.WeftError, match="slots=0"):
        Engine(writer("nano-gpt"), slots=0)
    with pytest.raises(weft.WeftError, match="a `length` of at least 1"):
        Engine(writer("nano-gpt"), length=0)
    with pytest.raises(weft.WeftError, match="texts of 42 tokens, but the model knows 41 positions"):
        Engine(writer("learned"), length=42)
    with pytest.raises(weft.WeftError, match="share nothing"):
        Engine(writer("nano-seq2seq"), prefixes=1)
    engine = Engine(writer("alibi"), length=60)
    same(
        engine.submit(EngineRequest(PROMPTS[2], max_tokens=54)).result(),
        plainly(writer("alibi"), PROMPTS[2], max_tokens=54, overflow="extend"),
    )


# Errors stay with those whom they concern.


def breaking(token: int, error: BaseException):
    """nano-gpt that fails to embed a token."""
    model = copy.deepcopy(writer("nano-gpt"))

    def hook(_, given):
        if (given[0] == token).any():
            raise error

    model.embedding.register_forward_pre_hook(hook)
    return model


def test_an_error_while_reading_concerns_that_prompt_only():
    model = breaking(50, RuntimeError("no 50"))
    engine = Engine(model, slots=4)
    handles = [engine.submit(request(model, row)) for row in (0, 1)]
    bad = engine.submit(EngineRequest([4, 50, 6], max_tokens=9))
    handles += [engine.submit(request(model, row)) for row in (2, 3)]
    engine.run()
    for row, handle in enumerate(handles):
        same(handle.result(), alone("nano-gpt", row))
    for read in (bad.result, lambda: list(bad)):
        with pytest.raises(RuntimeError, match="no 50"):
            read()
    assert bad.status == "failed" and engine.statistics.failed == 1 and engine.statistics.finished == 4


def test_an_error_while_writing_ends_those_who_write_and_the_engine_goes_on():
    model, sizes = copy.deepcopy(writer("nano-gpt")), []

    def hook(_, tokens):
        sizes.append(tokens[0].shape[1])
        if len(sizes) == 7:
            raise RuntimeError("broken")

    model.stack.blocks[1].feedforward.register_forward_pre_hook(hook)
    engine = Engine(model, slots=2)
    first, second, third = (engine.submit(request(model, row, stop=())) for row in (0, 2, 1))
    engine.run()
    for handle in (first, second):
        assert len(handle._steps) == 5
        with pytest.raises(RuntimeError, match="broken"):
            handle.result()
    same(third.result(), plainly(writer("nano-gpt"), PROMPTS[1], max_tokens=13))


def test_numbers_that_are_none_end_their_own_text_and_leave_the_slot_clean():
    model = copy.deepcopy(writer("nano-gpt"))
    model.embedding.register_forward_hook(
        lambda _, given, out: out.masked_fill((given[0] == 50)[..., None], float("nan"))
    )
    engine = Engine(model, slots=2, prefill_tokens=64)
    bad, good = (
        engine.submit(EngineRequest([*LONG[:9], 50, *LONG[9:]], SAMPLED, 9)),
        engine.submit(request(model, 0, SAMPLED)),
    )
    engine.run()
    with pytest.raises(weft.WeftError, match="no finite logits"):
        bad.result()
    same(good.result(), alone("nano-gpt", 0, SAMPLED))
    for prompts in ([PROMPTS[0], LONG], [LONG, PROMPTS[0]]):  # the longer one makes the shorter one's rest be read
        handles = [engine.submit(EngineRequest(prompt, max_tokens=9)) for prompt in prompts]
        for prompt, handle in zip(prompts, handles, strict=True):
            same(handle.result(), plainly(writer("nano-gpt"), prompt, max_tokens=9))


def test_an_error_in_reading_text_concerns_that_text_only():
    class Broken(Detokenizer):
        def stream(self, before=()):
            raise ValueError("no such character")

    class Late(Detokenizer):
        def stream(self, before=()):
            one = super().stream(before)
            one.feed = lambda *ids: 1 / 0
            return one

    model, tokenizer = writer("nano-gpt"), train_tokenizer("characters", ["ab"])
    engine = Engine(model, slots=4)
    early = engine.submit(request(model, 0, detokenizer=Broken(tokenizer)))
    late = engine.submit(request(model, 0, detokenizer=Late(tokenizer)))
    good = engine.submit(request(model, 1))
    same(good.result(), alone("nano-gpt", 1))
    with pytest.raises(ZeroDivisionError):
        late.result()
    with pytest.raises(ValueError, match="no such character"):
        early.result()


def test_an_interruption_stops_the_engine_and_says_so():
    model = breaking(50, KeyboardInterrupt())
    engine = Engine(model, slots=1)
    first, second = engine.submit(EngineRequest([5, 50], max_tokens=9)), engine.submit(request(model, 0))
    with pytest.raises(KeyboardInterrupt):
        engine.run()
    assert first.status == second.status == "failed" and engine.statistics.failed == 2
    with pytest.raises(EngineStopped, match=r"this engine failed \(KeyboardInterrupt: \): make a new engine"):
        engine.submit(request(model, 0))
    assert not engine.step()


# In a thread of its own.


def test_many_threads_at_once():
    model = writer("nano-gpt")
    found: dict[tuple[int, int], object] = {}

    def ask(engine, person):
        for row in range(4):
            sampling = SAMPLINGS[(row + person) % 4]
            handle = engine.submit(request(model, row, sampling))
            if person % 3 == 2:
                handle.cancel()
            else:
                list(handle)
                found[person, row] = (sampling, handle.result())

    with Engine(model, slots=3, prefill_tokens=5) as engine:
        people = [threading.Thread(target=ask, args=(engine, person)) for person in range(6)]
        for each in people:
            each.start()
        for each in people:
            each.join(60)
        with pytest.raises(weft.WeftError, match="runs in its own thread"):
            engine.step()
    assert len(found) == 16
    for (_, row), (sampling, result) in found.items():
        same(result, alone("nano-gpt", row, sampling))


def test_who_does_not_listen_holds_nobody_up_and_leaving_cancels():
    model, ends = writer("nano-gpt", length=401), []

    def listen(handle):
        try:
            list(handle)
        except Cancelled as error:
            ends.append(str(error))

    with Engine(model, slots=2) as engine:
        silent = engine.submit(EngineRequest([1, 2], max_tokens=390))
        first = next(iter(silent))
        assert [engine.submit(request(model, row)).result(60).finish_reason for row in range(4)]
        assert first == silent._steps[0]
        slow = threading.Event()
        model.embedding.register_forward_pre_hook(lambda *_: (slow.wait(0.01), None)[1])
        unread = [engine.submit(EngineRequest([3], max_tokens=390)) for _ in range(3)]
        heard = threading.Thread(target=listen, args=(unread[0],))
        heard.start()
    heard.join(60)
    assert not heard.is_alive() and ends == ["the engine was closed"]
    assert [handle.status for handle in unread] == ["cancelled"] * 3
    with pytest.raises(Cancelled, match="the engine was closed"):
        unread[2].result()
    with pytest.raises(EngineStopped, match="this engine is closed: make a new engine"):
        engine.submit(request(model, 0))
    with pytest.raises(EngineStopped, match="closed"), engine:
        pass
    assert not engine._batch.slots.keys and not engine.running
    model.embedding._forward_pre_hooks.clear()


def test_an_engine_that_breaks_in_its_thread_tells_everyone():
    model = writer("nano-gpt")
    engine = Engine(model, slots=1)
    engine._batch.slots.join = None
    with engine:
        handles = [engine.submit(request(model, row)) for row in (0, 1)]
        for handle in handles:
            with pytest.raises(TypeError):
                handle.result(60)
        with pytest.raises(EngineStopped, match=r"this engine failed \(TypeError"):
            engine.submit(request(model, 0))


def test_dropout_rests_in_each_step_and_comes_back():
    spec = shrink(weft.preset("nano-gpt")).replace(dropout=0.5)
    model = weft.build(spec, seed=1).train()
    engine = Engine(model)
    one, two = (engine.submit(EngineRequest([1, 2, 3], max_tokens=9)) for _ in range(2))
    engine.step()
    assert model.training and model.stack.blocks[0].training
    assert one.result().tokens == two.result().tokens == plainly(model, [1, 2, 3], max_tokens=9).tokens


def test_choosing_each_row_by_its_own_sampling():
    logits = torch.randn(6, 17, dtype=torch.float64)
    kinds = [SAMPLINGS[n % 4] for n in range(6)]
    samplers = [TokenSampler(kind, n, [1, n + 2], 17, logits.device) for n, kind in enumerate(kinds)]
    for step in range(3):
        choices = [choice for (choice,) in choose_each(logits, samplers)]
        for n, kind in enumerate(kinds):
            own = TokenSampler(kind, n, [1, n + 2], 17, logits.device)
            for _ in range(step + 1):
                uniform = None if own.uniform is None else own.uniform.next()
                (token,), (chance,) = choose_tokens(
                    logits[n : n + 1], kind, uniform, None if own.seen is None else own.seen[None]
                )
                if own.seen is not None:
                    own.seen[token] = True
            assert choices[n].token == token and choices[n].log_probability == pytest.approx(chance.item())
