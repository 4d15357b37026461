"""`weft bench startup`: whole commands, from the shell to their end; `python -c pass` is what no program can be below.

`weft predict` generates one token, so its time is that to the first; once with a language model that was trained for
two steps, once with the translator of dates that ships with the package.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace

from weft.bench.contest import BenchOptions, Contest, Entry, Work
from weft.bench.results import CaseResult
from weft.bench.running.turns import hold_contests
from weft.foundation.errors import WeftError

REFERENCE, RUN = "python -c pass", "RUN"
COMMANDS = {
    REFERENCE: ("-c", "pass"),
    "weft --help": ("-m", "weft", "--help"),
    "weft show gpt2": ("-m", "weft", "show", "gpt2"),
    "weft predict RUN, one token": ("-m", "weft", "predict", RUN, "the ", "--max-tokens", "1"),
    "weft predict sample:dates-run": ("-m", "weft", "predict", "sample:dates-run", "the 3rd of May 1987"),
}
NOTES = ("to reach: weft --help 0.4 s, weft show gpt2 1.5 s, weft predict 2.5 s",)


def contests(options: BenchOptions) -> list[Contest]:
    """One contest of all commands."""
    chosen = {REFERENCE: COMMANDS[REFERENCE], "weft --help": COMMANDS["weft --help"]} if options.quick else COMMANDS
    entries = (
        Entry(name, "weft.bench.cases.startup:command_work", {"words": list(words)}) for name, words in chosen.items()
    )
    return [Contest("commands", tuple(entries), "s", reference=REFERENCE, limits=False, notes=NOTES)]


def run(options: BenchOptions, report: Callable[[str], None]) -> CaseResult:
    """Measure the case; a turn is a few commands."""
    return hold_contests("startup", contests(options), (), replace(options, sizes=()), report)


def command_work(words: Sequence[str]) -> Work:
    """A command of this Python, run to its end; RUN stands for a small run, which is trained first."""
    command = [sys.executable, *(small_run() if word == RUN else word for word in words)]

    def call() -> None:
        done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["no message"])[-1]
            raise WeftError(f"{' '.join(words)} fails: {last}")

    return Work(call)


def small_run() -> str:
    """The folder of a decoder of two layers of width 64, trained for two steps."""
    from weft.reports.train import train

    folder = f"{tempfile.mkdtemp()}/run"
    train("text", "sample:markov", folder, steps=2, set={"width": 64, "layers": 2, "length": 64})
    return folder
