"""Long runs: neither memory nor open files grow, however many steps are taken and questions answered."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import statistics
import threading
from pathlib import Path

import pytest
from disturbed import run

import weft
from conftest import SMALL

pytestmark = pytest.mark.chaos
LENGTH = int(os.environ.get("WEFT_CHAOS_LENGTH", "1"))  # times a few hundred steps or questions
MOST_GROWTH = 12 << 20  # bytes from the second quarter to the last: allocators keep some


@contextlib.contextmanager
def watched(into: Path):
    """Memory and open files of this process, ten times a second, as JSON."""
    rows, over = [], threading.Event()

    def look():
        while not over.wait(0.1):
            pages = int(Path("/proc/self/statm").read_text().split()[1])
            rows.append((pages * resource.getpagesize(), len(os.listdir("/proc/self/fd"))))

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        into.write_text(json.dumps(rows))


def expect_level(file: Path, what: str) -> None:
    rows = json.loads(file.read_text())
    assert len(rows) >= 16, f"{len(rows)} looks only"
    memory, files = ([row[place] for row in rows] for place in (0, 1))
    quarter = len(rows) // 4
    growth = statistics.median(memory[-quarter:]) - statistics.median(memory[quarter : 2 * quarter])
    print(f"\n{what}: {len(rows) / 10:.0f} s, memory grew by {growth / 1e6:.1f} MB, {max(files)} files open at most")
    assert growth < MOST_GROWTH, [round(held / 1e6) for held in memory[:: max(1, len(rows) // 20)]]
    assert max(files[-quarter:]) <= max(files[quarter : 2 * quarter]) + 3, files


def test_training(book, tmp_path):
    changes = {**SMALL, "training.checkpoint_every": 5, "training.evaluate_every": 20}

    def work():
        with watched(tmp_path / "rows.json"):
            steps = 1200 * LENGTH
            weft.train("text", book, tmp_path / "run", steps=steps, set=changes, device="cpu")

    ended = run(work, tmp_path, seconds=600 + 60 * LENGTH)
    assert ended.code == 0, ended
    expect_level(tmp_path / "rows.json", f"training of {1200 * LENGTH:,} steps, a checkpoint every 5")


def test_answering(trained, tmp_path):
    def work():
        opened = weft.load(trained)
        with watched(tmp_path / "rows.json"):
            for number in range(1000 * LENGTH):
                text = f"she sells {'sea ' * (number % 7)}shells {number}"
                opened.predict([text, text[::-1]], max_tokens=number % 9 + 1)

    ended = run(work, tmp_path, seconds=600 + 60 * LENGTH)
    assert ended.code == 0, ended
    expect_level(tmp_path / "rows.json", f"answering {1000 * LENGTH:,} times two questions")


def test_the_test_would_notice(tmp_path):
    def work():
        kept = []
        with watched(tmp_path / "rows.json"):
            for _ in range(25):
                kept.append(b"x" * (4 << 20))
                threading.Event().wait(0.1)

    assert run(work, tmp_path).code == 0
    with pytest.raises(AssertionError):
        expect_level(tmp_path / "rows.json", "a leak")
