"""What distributing costs: DDP with one process against plain training, and two processes against one.

    python benchmarks/parallel.py [--rounds 15] [--json]

Every contestant is a training of the same model on the same text, in processes of its own, which take turns: while one
computes, the others block on a pipe. Times are wall times of a few steps; ratios are medians over rounds of (contestant
/ reference in the same round), with the range. The two-process row shows its efficiency: tokens per second against
twice those of one process with one thread, beside one process with two threads.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TEXT = "the quick brown fox jumps over the lazy dog, and the dog sleeps on in the sun by the river.\n" * 3000
CHANGES = {
    "width": 128, "layers": 4, "length": 64, "training.batch": 1536, "training.guard": False,
    "training.evaluate_every": 10**6, "training.checkpoint_every": 10**6,
}  # fmt: skip
STEPS_PER_ROUND = 6
CONTESTANTS = {  # name: (processes, threads of each, layout or None for plain training)
    "plain, 1 thread": (1, 1, None),
    "DDP, 1 process, 1 thread": (1, 1, "ddp"),
    "FSDP, 1 process, 1 thread": (1, 1, "fsdp"),
    "DDP, 2 processes, 1 thread each": (2, 1, "ddp"),
    "FSDP, 2 processes, 1 thread each": (2, 1, "fsdp"),
    "plain, 2 threads": (1, 2, None),
}


def work(folder: Path, layout: str | None, threads: int) -> None:
    """A contestant's process: takes STEPS_PER_ROUND steps for each line that it reads."""
    import torch

    from weft.training import loop, train
    from weft.training.reporting import Reporter
    from weft.training.request import TrainRequest

    torch.set_num_threads(threads)

    def take_turns(own: loop.Loop) -> None:
        own.module.train()
        for _ in range(3):
            own.one_step()
            own.step += 1
        print("ready", flush=True)
        for _ in sys.stdin:
            start = time.perf_counter()
            for _ in range(STEPS_PER_ROUND):
                own.one_step()
                own.step += 1
            print(time.perf_counter() - start, flush=True)
        os._exit(0)

    loop.Loop.run = take_turns  # type: ignore[method-assign]
    out = folder / f"run-{os.getpid()}" if layout is None else folder / os.environ["RUN"]
    changes = CHANGES | {"training.threads": threads}
    data = (str(folder / "text.txt"),)
    train.run_training(TrainRequest("text", data, out, changes=changes, steps=10**6, parallel=layout), Reporter())


class Contestant:
    """A training in processes of its own."""

    def __init__(self, folder: Path, name: str) -> None:
        self.processes, self.threads, layout = CONTESTANTS[name]
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.children = []
        for rank in range(self.processes):
            more = {"OMP_NUM_THREADS": str(self.threads), "WEFT_CACHE": str(folder / "cache"), "RUN": name}
            if layout is not None:
                more |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(self.processes)}
                more |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
            words = [sys.executable, __file__, "--work", str(folder), "--threads", str(self.threads)]
            words += [] if layout is None else ["--layout", layout]
            child = subprocess.Popen(
                words, env=os.environ | more, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
            self.children.append(child)
        self._read()

    def _read(self) -> list[str]:
        return [child.stdout.readline() for child in self.children]  # type: ignore[union-attr]

    def turn(self) -> float:
        """Seconds of the slowest process for a round of steps."""
        for child in self.children:
            assert child.stdin is not None
            child.stdin.write("go\n")
            child.stdin.flush()
        return max(map(float, self._read()))

    def end(self) -> None:
        for child in self.children:
            child.kill()
            child.wait()


def measure(rounds: int) -> dict[str, list[float]]:
    """Seconds per round of each contestant."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "text.txt").write_text(TEXT)
        running = {own: Contestant(folder, own) for own in CONTESTANTS}
        try:
            order = list(running)
            times: dict[str, list[float]] = {own: [] for own in order}
            for number in range(rounds + 1):
                for own in order[number % len(order) :] + order[: number % len(order)]:
                    seconds = running[own].turn()
                    if number:  # the first round warms up
                        times[own].append(seconds)
            return times
        finally:
            for contestant in running.values():
                contestant.end()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--work")
    parser.add_argument("--layout")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    if options.work:
        work(Path(options.work), options.layout, options.threads)
        return
    times = measure(options.rounds)
    reference = times["plain, 1 thread"]
    rows = []
    for name, own in times.items():
        ratios = sorted(a / b for a, b in zip(own, reference, strict=True))
        tokens = STEPS_PER_ROUND * CHANGES["training.batch"] / statistics.median(own)
        row = {"contestant": name, "value": round(tokens), "unit": "tokens/s", "ratio": statistics.median(ratios)}
        rows.append(row | {"low": ratios[0], "high": ratios[-1]})
    if options.json:
        print(json.dumps({"results": rows}))
        return
    print(f"{'':36}tokens/s   time against plain training with 1 thread")
    for row in rows:
        speed = f"   {1 / row['ratio'] / 2:.0%} of twice its speed" if "2 proc" in row["contestant"] else ""
        spread = f"({row['low']:.2f} to {row['high']:.2f})"
        print(f"{row['contestant']:36}{row['value']:8,}   {row['ratio']:.3f} x {spread}{speed}")


if __name__ == "__main__":
    main()
