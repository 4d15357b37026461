"""`weft bench prefill`: tokens per second of a prompt of 512 tokens, with the one token that follows it."""

from __future__ import annotations

from collections.abc import Callable

from weft.bench.cases.decode import contests
from weft.bench.contest import BenchOptions
from weft.bench.results import CaseResult
from weft.bench.running.turns import hold_contests

LENGTH = 512


def run(options: BenchOptions, report: Callable[[str], None]) -> CaseResult:
    """Measure the case; models, peers and checks are those of `decode`."""
    found, missing = contests(options, prompt=LENGTH, tokens=1)
    return hold_contests("prefill", found, missing, options, report)
