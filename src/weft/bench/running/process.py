"""A contestant as the one who holds the contest sees it: a process that is started, asked and ended."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from weft.bench.contest import Entry
from weft.foundation.errors import WeftError

PATIENCE = 1800.0  # seconds for one answer, after which a contestant counts as hanging

# Threads that wait for each other spin a few milliseconds and then sleep: fast within a turn, silent after it. It is
# libgomp's default, and a short one for LLVM's; OMP_WAIT_POLICY would make them spin for ever or not at all.
WAITING = {"GOMP_SPINCOUNT": "300000", "KMP_BLOCKTIME": "5"}
UNSET = ("OMP_WAIT_POLICY", "OMP_PROC_BIND", "GOMP_CPU_AFFINITY")


class ContestantError(WeftError):
    """A contestant ended or reported an error; the message is its last line."""


def environment_of(entry: Entry, threads: int) -> dict[str, str]:
    """The environment of a contestant: equal threads for all, which sleep soon when their turn is over."""
    own = {name: value for name, value in os.environ.items() if name not in UNSET}
    numbers = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(threads))
    return own | WAITING | numbers | {"TOKENIZERS_PARALLELISM": "false"} | dict(entry.environment)


class ContestantProcess:
    """One contestant: started at once, killed at the end with all that it started, and its temporary files."""

    def __init__(self, entry: Entry, threads: int) -> None:
        self.entry = entry
        self.folder = tempfile.TemporaryDirectory(prefix="weft-bench-", ignore_cleanup_errors=True)
        self.threads = entry.threads or threads
        self.errors = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115
        self.child = subprocess.Popen(
            [sys.executable, "-m", "weft.bench.running.contestant"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            env=environment_of(entry, self.threads) | {"TMPDIR": self.folder.name},
            text=True,
            encoding="utf-8",
            start_new_session=True,  # Ctrl-C reaches only the holder, who ends all
        )

    @property
    def number(self) -> int:
        """Its process id."""
        return self.child.pid

    def begin(self) -> None:
        """Tell it to build what it runs; `hear` waits until it has."""
        self._tell({"make": self.entry.make, "arguments": dict(self.entry.arguments), "threads": self.threads})

    def ask(self, command: Mapping[str, Any]) -> dict[str, Any]:
        """Its answer to a command; raises `ContestantError` with its last line if it failed."""
        self._tell(command)
        return self.hear()

    def _tell(self, command: Mapping[str, Any]) -> None:
        assert self.child.stdin is not None
        try:
            self.child.stdin.write(json.dumps(command) + "\n")
            self.child.stdin.flush()
        except BrokenPipeError:
            raise ContestantError(self._ended()) from None

    def hear(self) -> dict[str, Any]:
        """Its next answer."""
        assert self.child.stdout is not None
        with selectors.DefaultSelector() as waiting:
            waiting.register(self.child.stdout, selectors.EVENT_READ)
            if not waiting.select(PATIENCE):
                raise ContestantError(f"no answer in {PATIENCE:.0f} s")
        line = self.child.stdout.readline()
        if not line:
            raise ContestantError(self._ended())
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise ContestantError(answer["error"])
        return answer

    def _ended(self) -> str:
        """Why it ended: a signal, and the last line that it wrote."""
        code = self.child.wait()
        self.errors.seek(0)
        lines = [line.strip() for line in self.errors.read().splitlines() if line.strip()]
        how = f"ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        return f"{how}: {lines[-1]}" if lines else how

    def end(self) -> None:
        """Kill it and its children; twice does no harm."""
        if self.child.poll() is None:
            try:
                os.killpg(self.child.pid, signal.SIGKILL)
            except ProcessLookupError:
                self.child.kill()
            self.child.wait()
        self.folder.cleanup()
        for stream in (self.child.stdin, self.child.stdout, self.errors):
            try:
                if stream is not None:
                    stream.close()
            except BrokenPipeError:
                pass


def processor_seconds_by_session() -> dict[int, float]:
    """Processor time so far of each session's processes, with children that have ended; empty if not told.

    A contestant begins a session of its own, so its id finds it and all that it started.
    """
    found: dict[int, float] = {}
    ticks = os.sysconf("SC_CLK_TCK")
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
        except OSError:
            continue  # it has ended
        session = int(fields[3])
        found[session] = found.get(session, 0.0) + sum(map(int, fields[11:15])) / ticks
    return found
