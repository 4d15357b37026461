"""A server under mixed load for a while: no error but those asked for, and afterwards as many files and bytes.

WEFT_SERVING_SECONDS (20) is how long; `make soak` takes an hour of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import socket
import time
from pathlib import Path

import httpx2
import pytest

from servers import started, write_text_run

pytestmark = pytest.mark.chaos
SECONDS = float(os.environ.get("WEFT_SERVING_SECONDS", "20"))
SEED = int(os.environ.get("WEFT_CHAOS_SEED", "0"))
CLIENTS = 64
KEY = "a-key-for-load"
SETTINGS = {
    "keys": [KEY],
    "timeouts": {"headers": 2.0, "body": 2.0, "stalled": 2.0, "idle": 2.0},
    "engine": {"slots": 8, "queue": 200},
}
ALLOWED = {
    "whole": {200},
    "stream": {200},
    "chat": {200},
    "leave": {200},
    "key": {401},
    "broken": {400},
    "large": {413},
}
GROWTH = 64e6  # bytes of memory that may be more after than before: caches, and the allocator's own


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = write_text_run(tmp_path_factory.mktemp("load") / "chatty", chat=True)
    with started(json.dumps(SETTINGS), str(folder), module="strict_server") as running:
        yield running


def files_and_bytes(server):
    process = Path("/proc") / str(server.process.pid)
    status = (process / "status").read_text()
    resident = next(line for line in status.splitlines() if line.startswith("VmRSS"))
    return len(list((process / "fd").iterdir())), 1024 * int(resident.split()[1])


async def visit(client, kind, draw):
    """One request of a kind; its status."""
    text = " ".join(draw.choice(("the", "fox", "hello", "äö", "日本")) for _ in range(draw.randrange(1, 60)))
    body = {"prompt": text, "max_tokens": draw.randrange(1, 40), "seed": draw.randrange(99), "logprobs": 2}
    if kind == "chat":
        body = {"messages": [{"role": "user", "content": text}], "max_tokens": 10}
        return (await client.post("/v1/chat/completions", json=body)).status_code
    if kind == "key":
        return (await client.post("/v1/completions", json=body, headers={"authorization": "Bearer x"})).status_code
    if kind == "broken":
        data = draw.choice((b"{", b"\xff", b"[1]", b'{"prompt": 5}', b'{"prompt": "a", "n": -1}'))
        return (await client.post("/v1/completions", content=data)).status_code
    if kind == "large":
        return (await client.post("/v1/completions", content=b" " * 5_000_000)).status_code
    if kind == "whole":
        return (await client.post("/v1/completions", json=body)).status_code
    async with client.stream("POST", "/v1/completions", json={**body, "stream": True}) as answer:
        text = ""
        async for part in answer.aiter_text():
            text += part
            if kind == "leave":
                return answer.status_code
        assert text.endswith("data: [DONE]\n\n") and "error" not in text
        return answer.status_code


async def load(url, seconds):
    """All clients until the time is over; (kind, status) of every visit."""
    found, end = [], time.monotonic() + seconds
    headers = {"authorization": f"Bearer {KEY}", "content-type": "application/json"}
    limits = httpx2.Limits(max_connections=CLIENTS)

    async def one(number, client):
        draw = random.Random(SEED * 1000 + number)
        while time.monotonic() < end:
            kind = draw.choices(list(ALLOWED), (6, 6, 4, 3, 1, 2, 1))[0]
            found.append((kind, await visit(client, kind, draw)))

    async with httpx2.AsyncClient(base_url=url, headers=headers, timeout=120, limits=limits) as client:
        await asyncio.gather(*(one(number, client) for number in range(CLIENTS)))
    return found


def strangers(port):
    """A thousand connections that say nothing, half a request or nonsense, and go."""
    held = []
    for number in range(1000):
        connection = socket.create_connection(("127.0.0.1", port), timeout=20)
        sent = (b"", b"POST /v1/completions HTTP/1.1\r\nhost: x\r\n", b"\x00\xff\r\n\r\n")[number % 3]
        with contextlib.suppress(OSError):
            connection.sendall(sent)
        held.append(connection)
    for connection in held:
        connection.close()


def test_a_server_under_mixed_load_stays_as_it_was(server):
    asyncio.run(load(server.url, 3))
    server.wait_for(lambda: files_and_bytes(server)[0] < 60)
    files, size = files_and_bytes(server)
    sizes, begun = [], time.monotonic()
    while time.monotonic() - begun < SECONDS:
        for kind, status in asyncio.run(load(server.url, max(1.0, min(SECONDS / 4, 60)))):
            assert status in ALLOWED[kind], (kind, status)
        strangers(server.port)
        sizes.append((round(time.monotonic() - begun), files_and_bytes(server)[1] // 1_000_000))
    server.wait_for(lambda: files_and_bytes(server)[0] <= files + 2, 30)
    print(f"\nMB after seconds of load: {sizes}, before: {size // 1_000_000}")
    assert files_and_bytes(server)[1] - size < GROWTH
    log = server.log
    assert not [line for line in log if line["status"] >= 500], "no answer is a fault of the server"
    assert "Traceback" not in server.errors.read_text()
    assert len([line for line in log if line["status"] == 200]) > 20
    assert server.stop() == 0
