"""`weft bench parallel`: what distributing costs: DDP with one process against none, two processes against one.

Every contestant is a training of the same model on the same text, in one or two processes beneath its own; a call is a
few steps, by wall time of the slowest process. Twice the speed of plain training with one thread would be ideal for two
processes; one process with two threads stands beside it.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from weft.bench.contest import BenchOptions, Contest, Entry, Work
from weft.bench.results import CaseResult
from weft.bench.running.turns import hold_contests
from weft.foundation.errors import WeftError

TEXT = "the quick brown fox jumps over the lazy dog, and the dog sleeps on in the sun by the river.\n" * 3000
BATCH, STEPS = 1536, 6
CHANGES = {
    "width": 128, "layers": 4, "length": 64, "training.batch": BATCH, "training.guard": False,
    "training.evaluate_every": 10**6, "training.checkpoint_every": 10**6,
}  # fmt: skip
SMALLER = {"width": 16, "layers": 1, "length": 16, "training.batch": 64}
REFERENCE = "plain, 1 thread"
WAYS: dict[str, tuple[int, int, str | None]] = {  # name: processes, threads of each, layout or None for plain training
    REFERENCE: (1, 1, None),
    "DDP, 1 process, 1 thread": (1, 1, "ddp"),
    "FSDP, 1 process, 1 thread": (1, 1, "fsdp"),
    "DDP, 2 processes, 1 thread each": (2, 1, "ddp"),
    "FSDP, 2 processes, 1 thread each": (2, 1, "fsdp"),
    "plain, 2 threads": (1, 2, None),
}


def contests(options: BenchOptions) -> list[Contest]:
    """One contest of all ways."""
    chosen = (REFERENCE, "DDP, 2 processes, 1 thread each") if options.quick else tuple(WAYS)
    entries = [
        Entry(
            name, "weft.bench.cases.parallel:group_work", {"way": name, "quick": options.quick}, threads=WAYS[name][1]
        )
        for name in chosen
    ]
    return [Contest("4x128 T64", tuple(entries), "tokens", STEPS * BATCH, reference=REFERENCE, limits=False)]


def run(options: BenchOptions, report: Callable[[str], None]) -> CaseResult:
    """Measure the case."""
    return hold_contests("parallel", contests(options), (), options, report)


# --- in the contestants' processes -----------------------------------------------------------------------------------


def group_work(way: str, quick: bool) -> Work:
    """A training in processes of its own, which take their steps when they are told to."""
    group = Group(way, quick)
    return Work(group.turn, lambda: {"loss": [group.loss]})


class Group:
    """The processes of one training, blocked on pipes between turns."""

    def __init__(self, way: str, quick: bool) -> None:
        count, threads, layout = WAYS[way]
        folder = Path(tempfile.mkdtemp())
        (folder / "text.txt").write_text(TEXT[:20_000] if quick else TEXT)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.children = []
        for rank in range(count):
            more = {"OMP_NUM_THREADS": str(threads), "WEFT_CACHE": str(folder / "cache")}
            if layout is not None:
                more |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(count)}
                more |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
            words = [sys.executable, "-m", "weft.bench.running.training_worker", str(folder), str(threads)]
            words += [layout or "none", "quick" if quick else "whole"]
            self.children.append(
                subprocess.Popen(words, env=os.environ | more, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            )
        self.loss = float(self._hear()[0])

    def _hear(self) -> list[str]:
        found = []
        for child in self.children:
            assert child.stdout is not None
            line = child.stdout.readline()
            if not line:
                raise WeftError(f"a process of the training ended with exit code {child.wait()}")
            found.append(line)
        return found

    def turn(self) -> None:
        """A round of steps of all processes."""
        for child in self.children:
            assert child.stdin is not None
            child.stdin.write("go\n")
            child.stdin.flush()
        self._hear()
