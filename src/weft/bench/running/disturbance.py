"""What else ran on the machine while a contestant had its turn, and when a measurement counts as disturbed."""

from __future__ import annotations

import os
import statistics
from collections.abc import Sequence
from pathlib import Path

MOST_OTHERS = 0.10  # cores that other processes may use during a contestant's turns
MOST_WAITING = 0.02  # cores that contestants may use that wait for their turn
MOST_SPREAD = 0.10  # distance between the quartiles, over the median


def busy_seconds() -> float | None:
    """Processor time of all processes so far, with what the host of a virtual machine took; None if not told.

    The first line of /proc/stat: user, nice, system, idle, waiting for disks, interrupts, soft ones, stolen, ...
    """
    try:
        fields = Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0].split()[1:]
    except OSError:
        return None
    times = [int(field) for field in fields[:8]]
    return (sum(times) - times[3] - times[4]) / os.sysconf("SC_CLK_TCK")


def cores_of_others(busy: float | None, own: float, seconds: float) -> float | None:
    """Cores that others used: (all processor time - the contest's own) / wall time, at least 0; None if unknown."""
    return None if busy is None else max(0.0, busy - own) / max(seconds, 1e-9)


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """First quartile, median, third quartile."""
    if len(values) < 2:
        return (values[0],) * 3
    first, median, third = statistics.quantiles(values, n=4, method="inclusive")
    return first, median, third


def spread(values: Sequence[float]) -> float:
    """Distance between the quartiles as a share of the median."""
    first, median, third = quartiles(values)
    return (third - first) / median if median > 0 else 0.0


def find_disturbances(
    seconds: Sequence[float], others: Sequence[float | None], waiting: Sequence[float] = ()
) -> tuple[str, ...]:
    """Why times are no result, in words; empty if nothing disturbed them.

    `seconds` per round, and the cores that other processes and waiting contestants used in each.
    """
    found = []
    known = [cores for cores in others if cores is not None]
    if known and statistics.mean(known) > MOST_OTHERS:
        found.append(f"others used {statistics.mean(known):.2g} cores")
    if waiting and statistics.mean(waiting) > MOST_WAITING:
        found.append(f"waiting contestants used {statistics.mean(waiting):.2g} cores")
    if seconds and spread(seconds) > MOST_SPREAD:
        found.append(f"quartiles spread by {spread(seconds):.0%}".replace("%", " %"))
    return tuple(found)
