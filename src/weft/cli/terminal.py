"""Output of the commands: consoles, numbers with units, JSON, and progress."""

from __future__ import annotations

import json
import math
import os
import re
import sys
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn, TextIO

from rich.bar import Bar
from rich.cells import cell_len
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

PLAIN_WIDTH = 120
PLAIN_LINES = 10
BAR_WIDTH = 40
# Escape sequences: with parameters (CSI), strings up to their end (OSC, DCS, ...), and two characters.
ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)|[ -/]*[0-OQ-WYZ\\`-~])")
UNFINISHED = re.compile(r"\x1b(?:\[[0-?]*[ -/]*|[\]PX^_][^\x07\x1b]*\x1b?|[ -/]*)?$")
LONGEST_ESCAPE = 256  # characters that are held back for the end of a sequence
CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class _SafeConsole(Console):
    """A console whose texts cannot command the terminal: they may come from a model, a file or a stranger.

    It raises BrokenPipeError at a closed pipe, for the app to exit silently.
    """

    def print(self, *objects: Any, **how: Any) -> None:
        super().print(*(map(_harmless, objects) if self.is_terminal else objects), **how)

    def on_broken_pipe(self) -> NoReturn:
        raise BrokenPipeError


def _harmless(shown: Any) -> Any:
    if isinstance(shown, Text):
        shown = shown.copy()
        shown.plain = without_controls(shown.plain)
    return without_controls(shown) if isinstance(shown, str) else shown


def console(to_stderr: bool = False) -> Console:
    """A console on stdout, for results, or on stderr, for progress; pipes and files get a fixed width for tables."""
    stream = sys.stderr if to_stderr else sys.stdout
    fixed = None if stream.isatty() or "COLUMNS" in os.environ else PLAIN_WIDTH
    return _SafeConsole(stderr=to_stderr, width=fixed, highlight=False)


def print_json(value: Any) -> None:
    """Print one JSON value on stdout; a number that is not finite, which JSON has not, becomes null."""
    print(as_json(value, indent=2))


def as_json(value: Any, indent: int | None = None) -> str:
    """JSON that every program reads."""
    try:
        return json.dumps(value, indent=indent, ensure_ascii=False, allow_nan=False)
    except ValueError:
        return json.dumps(_finite(value), indent=indent, ensure_ascii=False, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(inner) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def in_bytes(count: int) -> str:
    """A number of bytes with its unit: `474.7 MiB`, `1,192 GiB`."""
    return _scaled(count, 1024, ("B", "KiB", "MiB", "GiB"))


def in_decimal_bytes(count: float) -> str:
    """A number of bytes in the units of data sheets: `80.0 GB` is 80 x 10^9."""
    return _scaled(count, 1000, ("B", "kB", "MB", "GB", "TB", "PB"))


def in_flops(count: int) -> str:
    """A number of operations with its unit: `284.8 MFLOP`."""
    return _scaled(count, 1000, ("FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP"))


def _scaled(count: float, step: int, units: tuple[str, ...]) -> str:
    size, unit = float(count), 0
    while size >= step and unit < len(units) - 1:
        size, unit = size / step, unit + 1
    digits = 0 if unit == 0 or size >= 1000 else 1 if size >= 100 else 2
    return f"{size:,.{digits}f} {units[unit]}"


def bars(shares: Sequence[tuple[str, float]], width: int = BAR_WIDTH, marked: int | None = None) -> str:
    """One line per label, with a bar as long as its share of 1; the marked one has an arrow."""
    widest = max((cell_len(label) for label, _ in shares), default=0)
    marks = ["" if marked is None else "> " if n == marked else "  " for n in range(len(shares))]
    return "\n".join(
        f"{mark}{' ' * (widest - cell_len(label))}{label} {share:6.1%} {'█' * round(share * width)}".rstrip()
        for mark, (label, share) in zip(marks, shares, strict=True)
    )


def print_bars(out: Console, shares: Sequence[tuple[str, float]], marked: int | None = None) -> None:
    """Labels with bars as long as their shares of 1: colored on a terminal, plain text elsewhere."""
    if not out.is_terminal:
        out.print(bars(shares, marked=marked), markup=False, soft_wrap=True)
        return
    table = Table.grid(padding=(0, 1))
    for justify in ("left", "right", "right", "left"):
        table.add_column(justify=justify, no_wrap=True)
    for n, (label, share) in enumerate(shares):
        color, style = ("green", "bold") if n == marked else ("blue", "")
        bar = Bar(1.0, 0.0, share, width=BAR_WIDTH, color=color)
        table.add_row(">" if n == marked else "", Text(label, style), Text(f"{share:.1%}", style), bar)
    out.print(table)


def quoted(text: str) -> str:
    """A text in quotes, on one line: what cannot be seen is escaped."""
    return f"'{''.join(sign if sign.isprintable() else _escaped(sign) for sign in text)}'"


def visible(text: str) -> str:
    """A text whose blanks and control characters can be seen: `␣`, `␊`, `␛`; other invisible ones are escaped."""
    return "".join(_visible(sign) for sign in text)


def _visible(sign: str) -> str:
    code = ord(sign)
    if code <= 0x20 or code == 0x7F:
        return "␡" if code == 0x7F else "␣" if sign == " " else chr(0x2400 + code)
    # A mark that combines with the letter before it needs one to stand on.
    return f"◌{sign}" if unicodedata.combining(sign) else sign if sign.isprintable() else _escaped(sign)


def _escaped(sign: str) -> str:
    return sign.encode("unicode_escape").decode("ascii")


def without_controls(text: str) -> str:
    """A text that only writes: without escape sequences and control characters but tabs and line ends."""
    return CONTROLS.sub("", ESCAPES.sub("", text))


class TerminalText:
    """Generated text, piece by piece: on a terminal without what would command it, elsewhere as it is.

    An escape sequence may come in several pieces; its beginning is held back.
    """

    def __init__(self, stream: TextIO) -> None:
        self.stream, self.filters, self.held = stream, stream.isatty(), ""

    def write(self, piece: str) -> None:
        """Write what is complete, at once."""
        if self.filters:
            piece = ESCAPES.sub("", self.held + piece)
            unfinished = UNFINISHED.search(piece)
            self.held = unfinished.group() if unfinished and len(unfinished.group()) <= LONGEST_ESCAPE else ""
            piece = CONTROLS.sub("", piece[: len(piece) - len(self.held)])
        self.stream.write(piece)
        self.stream.flush()


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
