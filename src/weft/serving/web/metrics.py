"""Metrics in the text format that Prometheus reads: counters, gauges, histograms; no labels of users' making."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
Labels = tuple[tuple[str, str], ...]


class Histogram:
    """Counts of values up to each bound, for each set of labels."""

    def __init__(self, bounds: Sequence[float] = SECONDS) -> None:
        self.bounds = bounds
        self.counts: dict[Labels, list[int]] = {}
        self.sums: Counter[Labels] = Counter()

    def add(self, value: float, **labels: str) -> None:
        key = tuple(labels.items())
        counts = self.counts.setdefault(key, [0] * (len(self.bounds) + 1))
        counts[bisect_left(self.bounds, value)] += 1
        self.sums[key] += value  # type: ignore[assignment]  # a Counter sums floats as well

    def lines(self, name: str) -> Iterable[str]:
        """As Prometheus reads it: each bucket counts all below its bound."""
        for key, counts in self.counts.items():
            total = 0
            for bound, count in zip((*map(str, self.bounds), "+Inf"), counts, strict=True):
                total += count
                yield f"{name}_bucket{_labels((*key, ('le', bound)))} {total}"
            yield f"{name}_sum{_labels(key)} {self.sums[key]:.6f}"
            yield f"{name}_count{_labels(key)} {total}"


class Metrics:
    """What a server has done; `lines` are asked for by /metrics."""

    def __init__(self) -> None:
        self.requests: Counter[Labels] = Counter()
        self.tokens: Counter[Labels] = Counter()
        self.disconnects = 0
        self.seconds, self.first_token, self.between = Histogram(), Histogram(), Histogram()

    def count_request(self, route: str, status: int, seconds: float) -> None:
        self.requests[(("path", route), ("status", str(status)))] += 1
        self.seconds.add(seconds, path=route)
        self.disconnects += status == 499

    def count_tokens(self, model: str, prompt: int, generated: int) -> None:
        self.tokens[(("model", model), ("kind", "prompt"))] += prompt
        self.tokens[(("model", model), ("kind", "generated"))] += generated

    def text(self, gauges: Mapping[str, Mapping[str, float]]) -> str:
        """All of it; `gauges`: of each name, the value of each model."""
        lines = [*_counter("weft_requests_total", "Requests by path and status.", self.requests)]
        lines += _counter("weft_tokens_total", "Tokens by model and kind.", self.tokens)
        lines += _counter("weft_disconnects_total", "Clients that left before their answer.", {(): self.disconnects})
        for name, words, histogram in (
            ("weft_request_seconds", "Time of whole requests.", self.seconds),
            ("weft_first_token_seconds", "Time to the first token.", self.first_token),
            ("weft_between_tokens_seconds", "Time between tokens of a text.", self.between),
        ):
            lines += [f"# HELP {name} {words}", f"# TYPE {name} histogram", *histogram.lines(name)]
        for name, values in gauges.items():
            lines.append(f"# TYPE {name} gauge")
            lines += [f"{name}{_labels((('model', model),))} {value:g}" for model, value in values.items()]
        return "\n".join(lines) + "\n"


def _counter(name: str, words: str, counts: Mapping[Labels, int]) -> list[str]:
    found = [f"{name}{_labels(key)} {count}" for key, count in counts.items()]
    return [f"# HELP {name} {words}", f"# TYPE {name} counter", *found]


def _labels(labels: Labels) -> str:
    inner = ",".join(f'{name}="{_escaped(value)}"' for name, value in labels)
    return f"{{{inner}}}" if inner else ""


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
