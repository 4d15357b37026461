"""Output of the commands: consoles, numbers with units, JSON, and progress."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

PLAIN_WIDTH = 120
PLAIN_LINES = 10


class _Pipe(Console):
    """A console that raises BrokenPipeError at a closed pipe, for the app to exit silently."""

    def on_broken_pipe(self) -> NoReturn:
        raise BrokenPipeError


def console(to_stderr: bool = False) -> Console:
    """A console on stdout, for results, or on stderr, for progress; pipes and files get a fixed width for tables."""
    stream = sys.stderr if to_stderr else sys.stdout
    fixed = None if stream.isatty() or "COLUMNS" in os.environ else PLAIN_WIDTH
    return _Pipe(stderr=to_stderr, width=fixed, highlight=False)


def print_json(value: Any) -> None:
    """Print one JSON value on stdout."""
    print(json.dumps(value, indent=2, ensure_ascii=False))


def in_bytes(count: int) -> str:
    """A number of bytes with its unit: `474.7 MiB`, `1,192 GiB`."""
    return _scaled(count, 1024, ("B", "KiB", "MiB", "GiB"))


def in_flops(count: int) -> str:
    """A number of operations with its unit: `284.8 MFLOP`."""
    return _scaled(count, 1000, ("FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP"))


def _scaled(count: int, step: int, units: tuple[str, ...]) -> str:
    size, unit = float(count), 0
    while size >= step and unit < len(units) - 1:
        size, unit = size / step, unit + 1
    digits = 0 if unit == 0 or size >= 1000 else 1 if size >= 100 else 2
    return f"{size:,.{digits}f} {units[unit]}"


def bars(shares: list[tuple[str, float]], width: int = 40) -> str:
    """One line per label, with a bar as long as its share of 1."""
    widest = max((len(label) for label, _ in shares), default=0)
    return "\n".join(f"{label:>{widest}} {share:6.1%} {'█' * round(share * width)}".rstrip() for label, share in shares)


@contextmanager
def progress(title: str) -> Iterator[Callable[[float, str], None]]:
    """Gives `report(share, status)`, which shows progress on stderr: a bar on a terminal, about ten lines elsewhere."""
    if sys.stderr.isatty():
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[status]}"),
        )
        with Progress(*columns, console=console(to_stderr=True)) as bar:
            task = bar.add_task(title, total=1.0, status="")
            yield lambda share, status: bar.update(task, completed=share, status=status)
        return
    last = -1

    def report(share: float, status: str) -> None:
        nonlocal last
        if int(share * PLAIN_LINES) > last:
            last = int(share * PLAIN_LINES)
            print(f"{title} {share:4.0%}  {status}", file=sys.stderr, flush=True)

    yield report
