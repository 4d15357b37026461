"""Are the processor's cores free now? A load average tells of the last minute; here they are tried for 30 ms."""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Callable
from pathlib import Path

SECONDS = 0.03
START = 0.001  # seconds to start a process
MOST_PROCESSES = 16  # more would take longer to start than to run
PROC_STAT = Path("/proc/stat")
SAMPLES = 10


def usable_cores() -> int:
    """The number of cores that this process may run on."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not Linux
        return os.cpu_count() or 1


def received_share(cores: int, seconds: float = SECONDS) -> float | None:
    """The share of the cores that processes of ours get, one per core, that use all they can; None if it is not known.

    About 1 on a machine of our own, 2/3 where one other process wants a core of two, 1/2 where two do. Unlike a list of
    running processes it is right in a container, and does not count processes that give way (nice). Where there are too
    many cores to start a process for each, the processes that run are counted.
    """
    if cores > MOST_PROCESSES:
        return share_beside(cores, lambda: PROC_STAT.read_text(encoding="ascii"), seconds)
    if not hasattr(os, "fork"):
        return None
    spinners: list[tuple[int, int, float]] = []
    try:
        spinners.extend(_start_spinner(seconds) for _ in range(cores))
    except OSError:  # no more processes are allowed
        cores = 0
    shares = [_read_share(*spinner) for spinner in spinners]
    return min(1.0, sum(shares) / cores) if cores else None


def share_beside(cores: int, read_stat: Callable[[], str], seconds: float = SECONDS) -> float | None:
    """The share of the cores that one process per core would get beside those that run now, by /proc/stat."""
    counts = []
    for _ in range(SAMPLES):
        try:
            found = [line.split()[1] for line in read_stat().splitlines() if line.startswith("procs_running ")]
            counts.append(max(0, int(found[0]) - 1))  # one of them reads the file
        except (OSError, IndexError, ValueError):
            return None
        time.sleep(seconds / SAMPLES)
    return cores / (cores + sum(counts) / len(counts))


def _start_spinner(seconds: float) -> tuple[int, int, float]:
    """A process that uses a core for a time and then writes its processor time: (process, pipe, these seconds)."""
    reader, writer = os.pipe()
    until = time.monotonic() + START + seconds
    try:
        process = os.fork()
    except OSError:
        os.close(reader)
        os.close(writer)
        raise
    if process:
        os.close(writer)
        return process, reader, seconds
    try:
        while time.monotonic() < until:
            pass
        os.write(writer, struct.pack("d", time.process_time()))
    finally:
        os._exit(0)  # without what the parent would do at its end


def _read_share(process: int, reader: int, seconds: float) -> float:
    with os.fdopen(reader, "rb") as pipe:
        written = pipe.read()
    os.waitpid(process, 0)
    return float(struct.unpack("d", written)[0]) / seconds if len(written) == 8 else 0.0
