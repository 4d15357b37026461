"""Mutated files for a reader, in a process of little memory and little time, guided by the lines that they reach.

An input that takes a step from line to line which none before it took is kept, and mutated further (coverage.py's
tracer, written in C, tells). Before that, bits are flipped in regions that have a checksum or a declared length
(`checked_regions`): each must be refused, or read as if it had not been flipped. Run as a program for one reader; it
prints what it found as JSON.
"""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import coverage

sys.path.insert(0, str(Path(__file__).parents[1]))

MOST_MEMORY = 1 << 30  # bytes besides what the packages take
MOST_SECONDS = 10  # of one input
MOST_FAILURES = 20
FLIPS = 0.3  # of the budget, at most
FAST_FOLDER = "/dev/shm"
TRACED = ("data", "checkpoints", "foundation", "models", "training", "tasks")
NUMBERS = (0, 1, 2, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF, 1 << 40, (1 << 63) - 1, (1 << 64) - 1)
WORDS = (
    *(b'"', b"[" * 2000, b"{", b"}", b"\n", b"\r", b"\t", b",", b":", b"null", b"NaN", b"Infinity", b"-1", b"1e999"),
    *(b"\\ud83d", b"\xff", b"\x00", b"\xef\xbb\xbf", b"\xff\xfe", b"9" * 5000, b"true", b"[]", b"{}", b"../../x"),
    *(b"%s", b"[1]", b'"x"', b"0", b"1.5"),
)


class Hang(BaseException):
    """An input took longer than it may; no handler of a reader catches it."""


class Guide:
    """Which steps from line to line of the package were taken."""

    def __init__(self) -> None:
        import weft

        source = Path(weft.__file__).parent
        self.coverage = coverage.Coverage(
            branch=True, data_file=None, config_file=False, include=[f"{source}/{name}/*" for name in TRACED]
        )
        self.taken = 0

    def found_new(self) -> bool:
        """Whether a step was taken since the last call that was never taken before."""
        before, self.taken = self.taken, sum(map(len, self.coverage._collector.data.values()))  # type: ignore[union-attr]
        return self.taken > before

    def reached(self) -> tuple[int, int]:
        """(lines that were reached, lines of all functions that were entered)."""
        found = self.coverage.get_data()
        reached = entered = 0
        for file in found.measured_files():
            lines = set(found.lines(file) or ())
            for own in _functions(compile(Path(file).read_text(encoding="utf-8"), file, "exec")):
                if own & lines:
                    reached, entered = reached + len(own & lines), entered + len(own)
        return reached, entered


def _functions(code: Any) -> list[set[int]]:
    """The lines of each function in a module, without its own first."""
    found = []
    for inner in (one for one in code.co_consts if hasattr(one, "co_lines")):
        found += [{line for *_, line in inner.co_lines() if line} - {inner.co_firstlineno}, *_functions(inner)]
    return found


def mutate(data: bytes, drawn: random.Random, others: list[bytes]) -> bytes:
    """One to four changes: bits, bytes, numbers, words, cuts, repetitions, pieces of other inputs."""
    held = bytearray(data)
    for _ in range(drawn.choice((1, 1, 2, 4))):
        at = drawn.randrange(len(held) + 1)
        kind = drawn.randrange(9)
        if kind == 0 and held:
            held[at - 1] ^= 1 << drawn.randrange(8)
        elif kind == 1 and held:
            held[at - 1] = drawn.randrange(256)
        elif kind == 2:
            size = drawn.choice((1, 2, 4, 8))
            number = drawn.choice(NUMBERS) & ((1 << 8 * size) - 1)
            held[at : at + size] = number.to_bytes(size, drawn.choice(("little", "big")))
        elif kind == 3:
            held[at:at] = drawn.choice(WORDS)
        elif kind == 4:
            held[at : at + drawn.randrange(1, 20)] = drawn.choice(WORDS)
        elif kind == 5:
            del held[at : at + drawn.randrange(1, max(2, len(held) // 2 + 1))]
        elif kind == 6:
            held = held[:at]
        elif kind == 7:
            end = at + drawn.randrange(1, 60)
            held[at:at] = held[at:end] * drawn.choice((1, 2, 50))
        else:
            other = drawn.choice(others)
            first = drawn.randrange(len(other) + 1)
            held[at : at + drawn.randrange(40)] = other[first : first + drawn.randrange(1, 60)]
    return bytes(held[: 1 << 20])


class Attempts:
    """Inputs for one reader, and what came of them."""

    def __init__(self, reader: Any, path: Path) -> None:
        from weft.foundation.errors import WeftError

        self.reader, self.path, self.refusal = reader, path, WeftError
        self.failures: dict[str, str] = {}

    def read(self, content: bytes) -> tuple[bool, Any]:
        """(whether it was read, what was read or the sentence); a traceback is a failure."""
        self.path.write_bytes(content)
        signal.alarm(MOST_SECONDS)
        try:
            return True, self.reader.read(self.path)
        except self.refusal as error:
            from weft.foundation.errors import LONGEST_SENTENCE

            told = str(error)
            if "\n" in told or len(told) > LONGEST_SENTENCE:
                self.fail(f"not one sentence: {told}", content)
            return False, told
        except BaseException:
            told = traceback.format_exc()
            self.fail(told, content)
            return False, told
        finally:
            signal.alarm(0)

    def fail(self, told: str, content: bytes) -> None:
        """Failures of one place count once."""
        places = [line.strip() for line in told.splitlines() if "/weft/" in line]
        known = told.splitlines()[-1][:100] + (places[-1] if places else "")
        if len(self.failures) < MOST_FAILURES:
            self.failures.setdefault(known, f"{told}\n{content[:1000]!r} ({len(content)} bytes)")


def flip_bits(
    attempts: Attempts, seeds: list[bytes], drawn: random.Random, left: Callable[[], bool], most: int
) -> tuple[int, int]:
    """(bits flipped where a checksum or a length stands for them, how many were refused)."""
    from checked_regions import checked, same

    flips = [
        (n, at, bit) for n, seed in enumerate(seeds) for at in checked(attempts.reader.name, seed) for bit in range(8)
    ]
    drawn.shuffle(flips)
    flipped = refused = 0
    sound = [attempts.read(seed)[1] for seed in seeds]
    for n, at, bit in flips[:most]:
        if not left():
            break
        content = bytearray(seeds[n])
        content[at] ^= 1 << bit
        read, found = attempts.read(bytes(content))
        flipped, refused = flipped + 1, refused + (not read)
        if read and not same(found, sound[n]):
            attempts.fail(f"silently accepted: bit {bit} of byte {at} of seed {n}", bytes(content))
    return flipped, refused


def fuzz(name: str, seconds: float, seed: int, most: int) -> dict[str, Any]:
    """Counts, coverage and failures of one reader, after so many seconds or inputs."""
    from faulty_readers import FAULTY

    from file_readers import READERS

    reader = next(one for one in (*READERS, *FAULTY) if one.name == name)
    drawn, guide = random.Random(f"{seed} {name}"), Guide()
    kept = reader.seeds()
    accepted = tried = 0

    def stop(*_: Any) -> None:
        raise Hang

    signal.signal(signal.SIGALRM, stop)
    fast = FAST_FOLDER if os.access(FAST_FOLDER, os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=fast) as folder:
        attempts = Attempts(reader, Path(folder) / reader.file)
        guide.coverage.start()
        for content in kept:
            attempts.read(content)
        guide.found_new()
        held = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (held + MOST_MEMORY,) * 2)
        begun = time.monotonic()
        flips_end, end = begun + FLIPS * seconds, begun + seconds
        flipped, refused = flip_bits(
            attempts, list(kept), drawn, lambda: time.monotonic() < flips_end, int(FLIPS * most)
        )
        while time.monotonic() < end and tried + flipped < most:
            content = mutate(drawn.choice(kept), drawn, kept)
            read, _ = attempts.read(content)
            tried, accepted = tried + 1, accepted + read
            if guide.found_new() and len(content) < 1 << 16:
                kept.append(content)
        guide.coverage.stop()
    reached, lines = guide.reached()
    return {
        "reader": name, "inputs": tried, "accepted": accepted, "flipped": flipped, "refused": refused,
        "kept": len(kept), "lines": reached, "of": lines, "failures": list(attempts.failures.values()),
    }  # fmt: skip


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    print(json.dumps(fuzz(sys.argv[1], float(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))))
