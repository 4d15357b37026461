"""Starting trainings of several processes, waiting for them with a deadline, and reading what they left behind."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).parent
PATIENCE = 240.0  # seconds in which anything in these tests has to happen; it takes a tenth of it
OPTIONS = [
    *("--steps", "24", "--module", f"{HERE / 'held_model.py'}:Held"),
    *("--set", "training.batch=1000", "--set", "training.checkpoint_every=5", "--set", "training.guard=false"),
    *("--set", "training.precision=float64"),
]


def wait_until(there: Callable[[], bool], what: str, more: Callable[[], str] = str) -> None:
    """Wait until it is so; `more` is told with `what` where it never is."""
    deadline = time.monotonic() + PATIENCE
    while not there():
        assert time.monotonic() < deadline, f"not within {PATIENCE:g} s: {what}\n{more()}"
        time.sleep(0.05)


def is_running(pid: int) -> bool:
    """Whether the process lives; one that has ended and is not yet reaped does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass
class Command:
    """A started command, whose words on stderr and stdout are in files."""

    process: subprocess.Popen[bytes]
    log: Path

    @property
    def pid(self) -> int:
        return self.process.pid

    def ended(self) -> int:
        """Its exit code, once it has ended."""
        wait_until(lambda: self.process.poll() is not None, f"the end of {self.process.args}", lambda: self.said)
        return int(self.process.returncode)

    @property
    def said(self) -> str:
        return self.log.read_text(errors="replace") + self.log.with_suffix(".out").read_text(errors="replace")

    @property
    def errors(self) -> str:
        return self.log.read_text(errors="replace")


@dataclass
class Stage:
    """A folder with data in which trainings run, and the commands that were started there."""

    folder: Path
    started: list[Command] = field(default_factory=list)

    def __post_init__(self) -> None:
        choice = random.Random(3)
        words = ["the", "cat", "sat", "on", "a", "mat", "and", "saw", "dogs", "run", "over", "green", "hills"]
        lines = (" ".join(choice.choice(words) for _ in range(9)) for _ in range(600))
        (self.folder / "book.txt").write_text(".\n".join(lines))

    def words(self, out: str, *more: str) -> list[str]:
        return ["-m", "weft", "train", "text", "book.txt", "--out", out, *OPTIONS, *more]

    def start(self, words: Sequence[str], prefix: Sequence[str] = (), **environment: str) -> Command:
        """Start Python with these words, in a session of its own as a terminal would."""
        log = self.folder / f"log-{len(self.started)}.err"
        own = {"WEFT_CACHE": str(self.folder / "cache"), "HELD_FOLDER": str(self.folder), "OMP_NUM_THREADS": "1"}
        with log.open("wb") as errors, log.with_suffix(".out").open("wb") as output:
            process = subprocess.Popen(
                [*prefix, sys.executable, *words],
                cwd=self.folder,
                env=os.environ | own | environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                start_new_session=True,
            )
        self.started.append(Command(process, log))
        return self.started[-1]

    def train(self, out: str, *more: str, **environment: str) -> Command:
        return self.start(self.words(out, *more), **environment)

    def go(self) -> None:
        """Let trainings hold no more."""
        (self.folder / "go").touch()

    def held(self, count: int) -> list[int]:
        """The pids of the processes by rank, once all hold at their step."""
        files = [self.folder / f"pid-{rank}" for rank in range(count)]

        def all_there() -> bool:
            ended = [command for command in self.started[-1:] if command.process.poll() not in (None, 0)]
            assert not ended, ended[0].said
            return all(file.exists() for file in files)

        wait_until(all_there, "processes that hold", lambda: "\n".join(command.said for command in self.started))
        return [int(file.read_text()) for file in files]

    def losses(self, out: str) -> dict[int, float]:
        """Validation losses by step, each step once and in order."""
        rows = [json.loads(line) for line in (self.folder / out / "metrics.jsonl").read_text().splitlines()]
        found = [(row["step"], row["validation"]) for row in rows if "validation" in row]
        assert [step for step, _ in found] == sorted({step for step, _ in found})
        return dict(found)

    def states(self, out: str) -> list[str]:
        return sorted(path.name for path in (self.folder / out / "training").iterdir())

    def end_all(self) -> None:
        """End what these tests started and what that started: workers end with their agents."""
        for command in self.started:
            if command.process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(command.pid, signal.SIGKILL)
                command.process.wait(30)
        for file in self.folder.glob("pid-*"):
            wait_until(lambda pid=int(file.read_text()): not is_running(pid), f"the end of {file.name}")  # type: ignore[misc]


@contextlib.contextmanager
def stage(folder: Path) -> Iterator[Stage]:
    made = Stage(folder)
    try:
        yield made
    finally:
        made.end_all()
