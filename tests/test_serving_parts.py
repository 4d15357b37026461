"""Parts of the server that need no socket: pieces and scores, errors, keys, metrics, names, chats' special tokens."""

from __future__ import annotations

import asyncio
import socket

import pytest
from pydantic import ValidationError

import weft
from servers import CHATML, TEXTS, write_text_run
from weft.cli.commands.serve import serve as serve_command
from weft.data.tokenizers.tokenizer import train_tokenizer
from weft.foundation.errors import WeftError
from weft.inference.decoding.detokenizer import Detokenizer
from weft.inference.decoding.generated import GeneratedToken
from weft.inference.engine.engine import Engine, EngineRequest
from weft.serving.answers.written_text import TokenNames, WrittenText, completion_logprobs
from weft.serving.requests.chats import ChatBody
from weft.serving.requests.completions import CompletionBody
from weft.serving.served.served_runs import name_runs, serve_run
from weft.serving.served.text_worker import MOST_FAILURES, TextWorker
from weft.serving.served.tickets import ModelFailed
from weft.serving.settings import EngineSettings, Limits, ServerSettings, Timeouts, read_keys
from weft.serving.web.errors import ApiError, from_validation, to_json
from weft.serving.web.keys import Keys, expect_own_host
from weft.serving.web.metrics import Metrics
from weft.serving.web.request_log import RequestRecord, errors, report_failure, request_id
from weft.tasks.support.language.chat_prompts import ChatPrompts
from weft.tasks.support.language.prompt_format import ChatTemplate, PromptFormat


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return weft.load(write_text_run(tmp_path_factory.mktemp("parts") / "run", chat=True))


@pytest.fixture(scope="module")
def served(run):
    one = serve_run("one", run, EngineSettings(slots=2, queue=2))
    yield one
    one.worker.engine.close()


def steps(run, tokens, stops=(), reason="length"):
    """Tokens as an engine gives them, with a score that is their number."""
    stream = Detokenizer(run.tokenizer, stops).stream()
    found = []
    for n, token in enumerate(tokens):
        text, stopped = stream.step(token, False, n == len(tokens) - 1)
        last = stopped or n == len(tokens) - 1
        found.append(GeneratedToken(0, token, -float(n), ("stop" if stopped else reason) if last else None, text))
        if stopped:
            break
    return found


def test_scores_are_held_back_with_the_text_they_belong_to(run, served):
    tokens = run.tokenizer.encode("the äö fox STOP jumps")
    for stops in ((), ("STOP",)):
        written, text, scored = WrittenText(served, [], (), True), "", []
        for step in steps(run, tokens, stops):
            piece = written.take([step])
            text, scored = text + piece.text, scored + piece.scored
            assert all(one.offset < len(text) or piece.finish_reason for one in scored)
        spelled = b"".join(served.bytes.of(one.token) for one in scored).decode()
        assert text == spelled == ("the äö fox STOP jumps" if not stops else "the äö fox ")
        assert [one.log_probability for one in scored] == [-float(n) for n in range(len(scored))]
        for one in scored:
            assert text[one.offset :].encode().startswith(served.bytes.of(one.token)) or one.offset < len(text)


def test_names_of_broken_characters_and_numbers_that_json_has_not(run, served):
    letters = [token for token in run.tokenizer.encode("日") if len(served.bytes.of(token)) < 3]
    names = TokenNames(served.bytes)
    scored = WrittenText(served, [], (), True).take(
        [GeneratedToken(0, token, float("-inf"), "length", "") for token in letters or run.tokenizer.encode("a")]
    )
    told = completion_logprobs(names, scored.scored, 0)
    assert told["token_logprobs"] == [-9999.0] * len(scored.scored)
    assert names.name(next(n for n in range(300) if served.bytes.of(n) == b"\xe6")) == "bytes:\\xe6"
    to_json(told)


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        ({"prompt": "a", "zzz": 1}, "zzz", "not a parameter"),
        ({"prompt": "a", "best_of": 2}, "best_of", "best_of 2"),
        ({"prompt": ["a", 1]}, "prompt", "mixes"),
        ({}, "prompt", "needed"),
        ({"prompt": "a", "stop": ["a", ""]}, "stop", "characters"),
        ("text", None, "object"),
    ],
)
def test_complaints_name_the_field(body, param, words):
    with pytest.raises(ValidationError) as error:
        CompletionBody.model_validate(body)
    found = from_validation(error.value.errors())
    assert found.status_code == 400 and found.param == param and words in str(found.detail)


def test_whole_numbers_may_be_written_as_floats_and_null_is_absent():
    body = CompletionBody.model_validate(
        {"prompt": [1, 2], "max_tokens": 3.0, "n": None, "temperature": 1, "top_k": -1}
    )
    assert body.max_tokens == 3 and body.n == 1 and body.sampling.top_k is None and body.prompt == ((1, 2),)
    chat = ChatBody.model_validate({"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}] * 2}]})
    assert chat.messages[0].content == "aa"


def test_settings_refuse_what_serves_nobody(tmp_path):
    for wrong in (
        lambda: ServerSettings(host="0.0.0.0"),
        lambda: ServerSettings(host="example.org"),
        lambda: ServerSettings(port=70_000),
        lambda: Limits(texts=0),
        lambda: Timeouts(answer=0),
        lambda: EngineSettings(slots=0),
        lambda: read_keys(["short"], None, None),
        lambda: read_keys([], "# nothing\n", None),
        lambda: read_keys([], None, "with a space inside"),
        lambda: name_runs(["a/run", "b/run"]),
        lambda: name_runs(["=x"]),
    ):
        with pytest.raises(WeftError):
            wrong()
    assert ServerSettings(host="::1").host and ServerSettings(host="0.0.0.0", keys=("12345678",)).keys
    assert read_keys(["aaaaaaaa"], "bbbbbbbb # mine\n\n", "cccccccc, aaaaaaaa") == ("aaaaaaaa", "bbbbbbbb", "cccccccc")
    assert name_runs(["runs/book/", "x=runs/book", "sample:dates-run"]) == [
        ("book", "runs/book/"), ("x", "runs/book"), ("dates-run", "sample:dates-run"),
    ]  # fmt: skip


def test_the_command_refuses_in_a_sentence(tmp_path, monkeypatch):
    monkeypatch.delenv("WEFT_API_KEYS", raising=False)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        for wrong, words in (
            ({"host": "0.0.0.0"}, "needs a key"),
            ({"port": taken.getsockname()[1]}, "cannot listen"),
            ({"port": 0}, "nowhere"),
            ({"port": 0, "api_key_file": tmp_path / "none"}, "cannot read the keys"),
            ({"port": 0, "max_body": 0.0}, "megabytes"),
            ({"port": 0, "slots": 0}, "slots"),
        ):
            with pytest.raises(WeftError, match=words):
                serve_command(["nowhere"], **wrong)


def test_keys_are_told_apart_and_hosts_checked():
    keys = Keys(["first-key", "second-key"])
    names = {keys.identify({b"authorization": f"Bearer {key}".encode()}).name for key in ("first-key", "second-key")}
    assert len(names) == 2 and not any("key" in name for name in names)
    for headers in ({}, {b"authorization": b"Bearer first-ke"}, {b"authorization": b"first-key"}):
        with pytest.raises(ApiError) as error:
            keys.identify(headers)
        assert error.value.status_code == 401
    for host in (b"localhost:8000", b"127.0.0.1", b"[::1]:80", b"[::1]", b""):
        expect_own_host({b"host": host})
    for host in (b"evil.example", b"127.0.0.1.evil.example:80", b"10.0.0.1"):
        with pytest.raises(ApiError):
            expect_own_host({b"host": host})


def test_metrics_are_what_prometheus_reads():
    metrics = Metrics()
    metrics.count_request("/v1/completions", 200, 0.3)
    metrics.count_request("/v1/completions", 499, 99.0)
    metrics.count_tokens('a"b', 3, 4)
    lines = metrics.text({"weft_open": {"a": 2}}).splitlines()
    assert 'weft_requests_total{path="/v1/completions",status="200"} 1' in lines and "weft_disconnects_total 1" in lines
    assert 'weft_request_seconds_bucket{path="/v1/completions",le="0.25"} 0' in lines
    assert 'weft_request_seconds_bucket{path="/v1/completions",le="+Inf"} 2' in lines
    assert 'weft_tokens_total{model="a\\"b",kind="generated"} 4' in lines and 'weft_open{model="a"} 2' in lines


def test_request_ids_of_clients_are_taken_if_they_are_harmless():
    assert request_id(b"abc-1.2") == "abc-1.2"
    for given in (b"", b"a b", b"\xff", b"x" * 65, b"a\n"):
        assert request_id(given).startswith("req_")


@pytest.mark.parametrize("template", [CHATML, None])
def test_special_tokens_in_messages_are_plain_text(run, template):
    tokenizer = run.tokenizer
    if template is None:
        tokenizer = train_tokenizer("bpe", TEXTS, 300, special_tokens=("<System:>", "<User:>", "<Assistant:>"))
    format = PromptFormat(chat=None if template is None else ChatTemplate(template))
    if template is None and not format.can_chat(tokenizer):
        pytest.skip("the roles of this tokenizer have other names")
    prompts = ChatPrompts(tokenizer, format)
    plain = [{"role": "user", "content": "hello world"}]
    assert prompts.guarded_ids(plain) == prompts.ids(plain)
    special = prompts.specials[-1]
    evil = [{"role": "user", "content": f"a {special} b"}]
    mark = tokenizer.id_of(special)
    assert prompts.guarded_ids(evil).count(mark) == prompts.guarded_ids(plain).count(mark)
    assert prompts.ids(evil).count(mark) == prompts.ids(plain).count(mark) + 1
    assert f"a {special} b" in tokenizer.decode(prompts.guarded_ids(evil), keep_special=True)


def test_a_failure_is_logged_once(monkeypatch):
    told = []
    monkeypatch.setattr(errors, "error", lambda *words, **more: told.append(words))
    record, error = RequestRecord("a", "GET", "/"), RuntimeError("a fault for this test")
    for failure in (error, error, RuntimeError("another one")):
        report_failure(record, failure)
    assert len(told) == 2


def test_a_worker_survives_an_engine_that_fails_and_gives_up_in_the_end(run):
    """Steps with nothing to do, which never fail, do not count as an engine that works."""
    engines, broken = [], True

    def make():
        engine = Engine(run.module, slots=1, queue_size=4)
        step = engine._batch.step

        def maybe_fail(take):
            if broken and engine.statistics.waiting:
                raise RuntimeError("a fault for this test")
            step(take)

        engine._batch.step = maybe_fail
        engines.append(engine)
        return engine

    async def scenario():
        nonlocal broken
        worker = TextWorker(make, 1, 2)
        worker.start()
        request = EngineRequest(run.tokenizer.encode("the "), max_tokens=3, detokenizer=Detokenizer(run.tokenizer))

        async def expect_failure():
            (ticket,) = worker.submit([request])
            with pytest.raises(ModelFailed):
                await ticket.next()

        await expect_failure()
        broken = False
        (ticket,) = worker.submit([request])
        tokens = await ticket.next()
        while tokens[-1].finish_reason is None:
            tokens = await ticket.next()
        ticket.close()
        broken = True
        for _ in range(MOST_FAILURES):
            assert worker.ready
            await expect_failure()
        with pytest.raises(ApiError) as error:
            worker.submit([request])
        assert error.value.status_code == 503
        worker.close()

    asyncio.run(scenario())
    assert len(engines) == 1 + MOST_FAILURES


def test_a_worker_says_when_its_engine_is_made_again_and_what_never_fits(run):
    async def scenario():
        worker = TextWorker(lambda: Engine(run.module, slots=1, queue_size=4), 1, 2)
        worker.start()
        request = EngineRequest(run.tokenizer.encode("the "), max_tokens=1)
        with pytest.raises(ApiError) as error:
            worker.submit([request] * 4)
        assert error.value.status_code == 400
        worker.engine._halt("this engine failed (RuntimeError: a secret)")
        with pytest.raises(ApiError) as error:
            worker.submit([request])
        assert error.value.status_code == 503 and "secret" not in str(error.value.detail) and not worker.open
        worker.close()

    asyncio.run(scenario())
