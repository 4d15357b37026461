"""Load on a server that speaks OpenAI's API: clients that stream completions, each with the times of its tokens.

Plain sockets and one event loop, so that the client takes little of the machine that the server needs.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from weft.foundation.errors import WeftError

PATIENCE = 600.0  # seconds for an answer
DONE = b"[DONE]"


@dataclass
class Answered:
    """One answer: seconds from the request to each of its pieces, and the number of its tokens."""

    pieces: list[float] = field(default_factory=list)
    seconds: float = 0.0
    tokens: int = 0
    text: str = ""

    @property
    def between(self) -> list[float]:
        """Seconds between pieces."""
        return [later - earlier for earlier, later in zip(self.pieces, self.pieces[1:], strict=False)]


@dataclass(frozen=True)
class LoadResult:
    """All answers of a load, and the seconds that it took."""

    answers: list[Answered]
    seconds: float

    @property
    def tokens(self) -> int:
        return sum(answer.tokens for answer in self.answers)

    def numbers(self) -> dict[str, float]:
        """Throughput, and times to the first token and between tokens in milliseconds."""
        first = [answer.pieces[0] for answer in self.answers if answer.pieces]
        between = [gap for answer in self.answers for gap in answer.between]
        return {
            "tokens_per_second": self.tokens / self.seconds,
            "first_ms_p50": 1e3 * percentile(first, 50), "first_ms_p95": 1e3 * percentile(first, 95),
            "between_ms_p50": 1e3 * percentile(between, 50), "between_ms_p95": 1e3 * percentile(between, 95),
        }  # fmt: skip


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that so many percent do not exceed; 0 of none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share / 100 * len(ordered)))] if ordered else 0.0


def drive(url: str, bodies: Sequence[dict[str, Any]], clients: int, key: str | None = None) -> LoadResult:
    """Ask for all completions, by so many clients at once; each takes the next as soon as its last one is done."""
    return asyncio.run(_drive(url, list(bodies), clients, key))


async def _drive(url: str, bodies: list[dict[str, Any]], clients: int, key: str | None) -> LoadResult:
    answers: list[Answered] = []
    waiting = iter(bodies)

    async def client() -> None:
        for body in waiting:
            async with asyncio.timeout(PATIENCE):
                answers.append(await _ask(url, body, key))

    began = time.perf_counter()
    tasks = [asyncio.ensure_future(client()) for _ in range(clients)]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
    return LoadResult(answers, time.perf_counter() - began)


async def _ask(url: str, body: dict[str, Any], key: str | None) -> Answered:
    """One streamed completion."""
    place = urlsplit(url)
    reader, writer = await asyncio.open_connection(place.hostname, place.port or 80)
    try:
        data = json.dumps({**body, "stream": True, "stream_options": {"include_usage": True}}).encode()
        lines = [f"POST {place.path.rstrip('/')}/v1/completions HTTP/1.1", f"host: {place.netloc}", "connection: close"]
        lines += ["content-type: application/json", f"content-length: {len(data)}"]
        lines += [] if key is None else [f"authorization: Bearer {key}"]
        began = time.perf_counter()
        writer.write("\r\n".join([*lines, "", ""]).encode() + data)
        status = (await reader.readline()).split()
        if len(status) < 2 or status[1] != b"200":
            rest = (await reader.read(4000)).decode(errors="replace").rpartition("\r\n\r\n")[2]
            raise WeftError(f"{url} answers {b' '.join(status[1:]).decode()}: {rest[:200]}")
        return await _read(reader, began)
    finally:
        writer.close()


async def _read(reader: asyncio.StreamReader, began: float) -> Answered:
    """Events up to the last; how they are cut into chunks does not matter."""
    found, told = Answered(), 0
    while line := await reader.readline():
        line = line.strip()
        if not line.startswith(b"data:"):
            continue
        if line[5:].strip() == DONE:
            break
        event = json.loads(line[5:])
        if "error" in event:
            raise WeftError(f"the server ended a stream: {event['error'].get('message')}")
        told = (event.get("usage") or {}).get("completion_tokens", told)
        if event["choices"] and event["choices"][0].get("text"):
            found.pieces.append(time.perf_counter() - began)
            found.text += event["choices"][0]["text"]
    found.seconds = time.perf_counter() - began
    found.tokens = told or len(found.pieces)
    return found
