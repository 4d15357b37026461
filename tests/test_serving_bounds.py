"""Bounds of a server: keys, queue, clients that leave, time-outs, the stop, the log. All over real sockets."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import threading
import time

import httpx2
import openai
import pytest

from servers import started, write_text_run

KEYS = ["first-key-1234", "second-key-5678"]
SLOTS, QUEUE = 2, 3
SETTINGS = {
    "keys": KEYS,
    "limits": {"body": 20_000, "task_body": 30_000, "connections": 60, "tokens": 200},
    "timeouts": {"headers": 0.5, "body": 0.5, "stalled": 1.0, "idle": 1.0, "stop": 5.0},
    "engine": {"slots": SLOTS, "queue": QUEUE},
}
LONG = {"model": "tiny", "prompt": "the ", "max_tokens": 200, "temperature": 0}
FREED = 5.0  # seconds at most on busy cores; that nothing was written to the end shows that it was at once
HEAD = f"host: localhost\r\nauthorization: Bearer {KEYS[0]}\r\ncontent-type: application/json\r\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_text_run(tmp_path_factory.mktemp("served") / "tiny")


@pytest.fixture(scope="module")
def server(folder):
    with started(json.dumps(SETTINGS), str(folder), "sample:dates-run", module="strict_server") as running:
        running.authorized = {"authorization": f"Bearer {KEYS[0]}"}
        yield running


@pytest.fixture
def client(server):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key=KEYS[1], max_retries=0) as found:
        yield found


def opened(server):
    return socket.create_connection(("127.0.0.1", server.port), timeout=20)


def request_bytes(body, path="/v1/completions", head=HEAD):
    data = json.dumps(body).encode()
    return f"POST {path} HTTP/1.1\r\n{head}content-length: {len(data)}\r\n\r\n".encode() + data


def flood(connection, sent):
    while True:
        connection.sendall(sent)


def answer_of(connection):
    """All that comes until the connection ends."""
    found = b""
    while part := connection.recv(65536):
        found += part
    return found


def error_of(found):
    return json.loads(found.partition(b"\r\n\r\n")[2])["error"]


def running(server):
    text = server.get("/metrics", headers=server.authorized).text
    lines = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    return int(float(lines['weft_texts_running{model="tiny"}'])), int(float(lines['weft_texts_waiting{model="tiny"}']))


def test_a_key_is_needed_but_not_for_health(server):
    assert server.get("/health").status_code == server.get("/ready").status_code == 200
    for path in ("/health", "/ready"):
        answer = httpx2.head(server.url + path)
        assert answer.status_code == 200 and answer.content == b""
    for headers, code in (({}, "missing_api_key"), ({"authorization": "Bearer no"}, "invalid_api_key"),
                          ({"authorization": f"Basic {KEYS[0]}"}, "invalid_api_key"),
                          ({"authorization": "Bearer \xff"}, "invalid_api_key")):  # fmt: skip
        for path in ("/v1/models", "/metrics", "/openapi.json", "/nothing"):
            raw = {name: value.encode("latin-1") for name, value in headers.items()}
            answer = server.get(path, headers=raw)
            assert answer.status_code == 401 and answer.json()["error"]["code"] == code
    for key in KEYS:
        assert server.get("/v1/models", headers={"authorization": f"Bearer {key}"}).status_code == 200


def test_a_full_queue_refuses_at_once_and_says_when_to_come_back(server, client):
    with opened(server) as first, opened(server) as second:
        for connection, n in ((first, SLOTS), (second, QUEUE)):
            connection.sendall(request_bytes({**LONG, "n": n, "stream": True}))
        server.wait_for(lambda: running(server) == (SLOTS, QUEUE))
        with pytest.raises(openai.RateLimitError) as error:
            client.completions.create(**{**LONG, "max_tokens": 1})
        assert error.value.code == "queue_full" and int(error.value.response.headers["retry-after"]) >= 1
    server.wait_for(lambda: running(server) == (0, 0))
    assert client.completions.create(**{**LONG, "max_tokens": 1}).usage.completion_tokens == 1


def test_more_texts_than_ever_fit_are_refused_for_good(client):
    with pytest.raises(openai.BadRequestError) as error:
        client.completions.create(**{**LONG, "max_tokens": 1}, n=SLOTS + QUEUE + 1)
    assert error.value.param == "n"


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_frees_its_slot(server, stream):
    name = f"leaves-{stream}"
    with opened(server) as connection:
        connection.sendall(request_bytes({**LONG, "stream": stream, "n": 2}, head=f"{HEAD}x-request-id: {name}\r\n"))
        server.wait_for(lambda: running(server)[0] == 2)
    server.wait_for(lambda: running(server) == (0, 0), FREED)
    server.wait_for(lambda: server.told(name) is not None)
    told = server.told(name)
    assert told["status"] == 499 or told["disconnected"]
    assert told["completion_tokens"] < 400


def test_a_cancelled_call_of_the_async_client_frees_its_slot(server):
    async def leave():
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key=KEYS[0], max_retries=0) as client:
            task = asyncio.ensure_future(client.completions.create(**LONG, n=2))
            while (await asyncio.to_thread(running, server))[0] < 2:
                assert not task.done()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            stream = await client.completions.create(**LONG, stream=True)
            async for _ in stream:
                break
            await stream.close()

    asyncio.run(leave())
    server.wait_for(lambda: running(server) == (0, 0), FREED)


def test_the_loop_answers_while_the_model_works(server):
    with opened(server) as connection:
        connection.sendall(request_bytes({**LONG, "n": 5, "stream": True}))
        connection.recv(10)
        assert [server.get("/health").status_code for _ in range(20)] == [200] * 20


def test_bodies_are_bounded_however_they_are_sent(server):
    big = json.dumps({"prompt": "x" * 40_000}).encode()
    declared = f"POST /v1/completions HTTP/1.1\r\n{HEAD}content-length: {len(big)}\r\n\r\n".encode() + big
    chunked = (
        f"POST /v1/completions HTTP/1.1\r\n{HEAD}transfer-encoding: chunked\r\n\r\n".encode()
        + b"%x\r\n%s\r\n0\r\n\r\n" % (len(big), big)
    )
    endless = f"POST /v1/completions HTTP/1.1\r\n{HEAD}content-length: {10**15}\r\n\r\n".encode()
    for sent in (declared, chunked, endless + big):
        with opened(server) as connection:
            connection.sendall(sent)
            found = answer_of(connection)
        assert found.startswith(b"HTTP/1.1 413") and error_of(found)["code"] == "body_too_large"
    inside = request_bytes({"model": "dates-run", "input": "1 May 1987" + " " * 15_000}, "/v1/tasks/translate")
    with opened(server) as connection:
        connection.sendall(inside + b"GET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        assert answer_of(connection).startswith(b"HTTP/1.1 400"), "it fits the body, but not the model"


def test_large_headers_are_refused(server):
    for filling in (b"x: " + b"y" * 40_000, b"x: y\r\n" * 5000 + b"z: z", b"x: " + b"y" * 200_000):
        with opened(server) as connection:
            connection.sendall(b"GET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n")
            try:
                connection.sendall(filling + b"\r\n\r\n")
                found = answer_of(connection)
            except ConnectionError:
                continue  # it was closed on what was still being sent
        assert found[:13] in (b"HTTP/1.1 431 ", b"HTTP/1.1 400 ")


def test_slow_headers_and_slow_bodies_end(server):
    slow = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\nx-a: "
    for sent, status in ((b"", b"408"), (slow, b"408")):
        with opened(server) as connection:
            connection.sendall(sent)
            found = answer_of(connection)
        assert found.startswith(b"HTTP/1.1 " + status) and error_of(found)["type"] == "timeout"
    with opened(server) as connection:
        connection.sendall(f"POST /v1/completions HTTP/1.1\r\n{HEAD}content-length: 100\r\n\r\n{{".encode())
        found = answer_of(connection)
    assert found.startswith(b"HTTP/1.1 408") and error_of(found)["code"] == "body_timeout"
    with opened(server) as connection:  # the second request of a connection
        connection.sendall(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
        found = b""
        while not found.endswith(b'{"status":"ok"}'):
            found += connection.recv(65536)
        connection.sendall(slow)
        assert answer_of(connection).startswith(b"HTTP/1.1 408")
    with opened(server) as connection:  # drop by drop, which resets no clock
        stop = threading.Event()

        def drip():
            while not stop.is_set():
                try:
                    connection.sendall(b"a")
                except OSError:
                    return
                stop.wait(0.05)

        connection.sendall(slow)
        thread = threading.Thread(target=drip)
        thread.start()
        try:
            assert answer_of(connection).startswith(b"HTTP/1.1 408")
        except ConnectionResetError:
            pass  # it ended on what was still being sent
        finally:
            stop.set()
            thread.join()


@pytest.mark.parametrize(
    "sent",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET / HTTP/x\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET /health HTTP/1.1\r\n\r\n",
        b"GET /health HTTP/1.1\r\nhost: x\r\nbad header\r\n\r\n",
        b"GET /health HTTP/1.1\r\nhost: x\r\nx: a\x00b\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: -1\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: gzip\r\n\r\n",
        f"POST /v1/completions HTTP/1.1\r\n{HEAD}transfer-encoding: chunked\r\n\r\nzz\r\n".encode(),
    ],
)
def test_what_is_no_http_is_refused_in_the_same_form(server, sent):
    with opened(server) as connection:
        connection.sendall(sent)
        found = answer_of(connection)
    assert found.startswith(b"HTTP/1.1 400") and set(error_of(found)) == {"message", "type", "param", "code"}
    assert server.get("/health").status_code == 200


@pytest.mark.parametrize(
    "body",
    [
        b"{", b"\xff\xfe{}", b'{"prompt": "\xc3\x28"}', b"[" * 9000, b'{"max_tokens": 1e999}', b"null", b'"text"',
        b'{"seed": ' + b"9" * 9000 + b"}", b'{"temperature": NaN, "prompt": "a"}', b'{"prompt": "\\ud800"}',
        b'{"\\ud800": 1, "prompt": "a"}', b'{"model": "\\ud800", "prompt": "a"}',
        b'{"model": "../../etc", "prompt": "a"}',
    ],
)  # fmt: skip
def test_malformed_bodies_are_refused(server, body):
    head = f"POST /v1/completions HTTP/1.1\r\n{HEAD}content-length: {len(body)}\r\nconnection: close\r\n\r\n"
    with opened(server) as connection:
        connection.sendall(head.encode() + body)
        found = answer_of(connection)
    assert found[:13] in (b"HTTP/1.1 400 ", b"HTTP/1.1 404 "), found
    assert error_of(found)["message"] and b"Traceback" not in found and b"/work" not in found and b".py" not in found


def test_a_client_that_does_not_read_is_cut_off(server):
    with opened(server) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
        # Answers that nobody takes, one after the other on one connection, fill the buffers of both sides.
        sent = request_bytes({**LONG, "max_tokens": 1, "prompt": "x " * 90, "echo": True, "logprobs": 20})
        with pytest.raises(ConnectionError):
            flood(connection, sent)
    assert server.get("/health").status_code == 200


def test_more_connections_than_allowed_are_refused(server):
    held = [opened(server) for _ in range(60)]
    try:
        with opened(server) as one_more:
            assert answer_of(one_more).startswith(b"HTTP/1.1 429")
    finally:
        for connection in held:
            connection.close()
    server.wait_for(lambda: server.get("/health").status_code == 200)


def test_the_log_is_json_without_prompts_and_cannot_be_forged(server):
    secret = "a secret that nobody logs"
    body = {**LONG, "prompt": secret, "max_tokens": 2}
    answer = server.post("/v1/completions", body, headers={**server.authorized, "x-request-id": "my-own.id"})
    assert answer.headers["x-request-id"] == "my-own.id"
    server.get("/%0A%7B%22status%22%3A200%7D", headers={**server.authorized, "x-request-id": "bad id; x"})
    server.wait_for(lambda: any("%0A" in line["path"] or "\n" in line["path"] for line in server.log))
    text = server.errors.read_text()
    assert secret not in text and KEYS[0] not in text and KEYS[1] not in text
    lines = {line["id"]: line for line in server.log}
    told = lines["my-own.id"]
    assert told["model"] == "tiny" and told["status"] == 200 and told["completion_tokens"] == 2
    assert told["client"] and told["first_token_seconds"] <= told["seconds"] and "bad id; x" not in lines
    assert [line["status"] for line in server.log if line["path"] == '/\n{"status":200}'] == [404]


def test_answers_say_nothing_of_the_machine(server):
    for answer in (server.get("/health"), server.get("/v1/models", headers=server.authorized)):
        assert "server" not in answer.headers and "uvicorn" not in str(answer.headers).lower()
        assert "access-control-allow-origin" not in answer.headers


def test_it_finishes_what_runs_when_it_is_told_to_stop(folder):
    with started(json.dumps({"engine": {"slots": 1}}), str(folder), module="strict_server") as server:
        with opened(server) as connection:
            head = "host: localhost\r\ncontent-type: application/json\r\n"
            connection.sendall(request_bytes({**LONG, "stream": True, "max_tokens": 230, "n": 8}, head=head))
            found = connection.recv(10)
            server.process.send_signal(signal.SIGTERM)
            server.wait_for(lambda: server.get("/ready").status_code == 503)
            refused = server.post("/v1/completions", LONG)
            assert refused.status_code == 503 and refused.headers["retry-after"]
            found += answer_of(connection)
        assert found.count(b'"finish_reason":"length"') == 8 and b"data: [DONE]" in found
        assert server.process.wait(20) == 0
        assert "Traceback" not in server.errors.read_text()


def test_a_stop_whose_time_is_over_tells_streams_so(folder):
    settings = {"timeouts": {"stop": 0.0}, "engine": {"slots": 1}}
    with started(json.dumps(settings), str(folder), module="strict_server") as server:
        with opened(server) as connection:
            head = "host: localhost\r\ncontent-type: application/json\r\n"
            connection.sendall(request_bytes({**LONG, "stream": True, "max_tokens": 250, "n": 20}, head=head))
            found = connection.recv(10)
            began = time.monotonic()
            server.process.send_signal(signal.SIGTERM)
            found += answer_of(connection)
        assert b'data: {"error":' in found and b"[DONE]" not in found
        assert "never retrieved" not in server.errors.read_text()
        assert server.process.wait(20) == 0 and time.monotonic() - began < 15


def test_without_keys_only_this_machine_is_answered_and_answers_have_a_time(folder):
    with started(str(folder), "--no-access-log", "--timeout", "0.05") as server:
        assert server.get("/v1/models").status_code == 200
        late = server.post("/v1/completions", {**LONG, "n": 20})
        assert late.status_code == 408 and late.headers["x-should-retry"] == "false"
        assert late.json()["error"]["code"] == "timeout"
        broken = server.post("/v1/completions", {**LONG, "stream": True, "n": 10}).text
        assert '"code":"timeout"' in broken and "[DONE]" not in broken
        server.wait_for(lambda: server.gauge("weft_texts_running", "tiny") == 0)
        answer = server.get("/v1/models", headers={"host": "evil.example"})
        assert answer.status_code == 403 and answer.json()["error"]["code"] == "invalid_host"
        assert not server.log
        assert server.stop() == 0
