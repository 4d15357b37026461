"""`weft bench`: speed as a ratio to other libraries, each in a process of its own, taking turns in the same run."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from weft.cli.app import INTERRUPTED, AsJson, app
from weft.cli.bench_options import (
    Again,
    CaseNames,
    Compiled,
    DataFolder,
    Html,
    Largest,
    Markdown,
    Minutes,
    PeerNames,
    PictureFile,
    Precision,
    Quick,
    Results,
    Rounds,
    RunsFolder,
    Seconds,
    Seeds,
    ServerUrl,
    Sizes,
    Threads,
)
from weft.foundation.errors import WeftError

if TYPE_CHECKING:
    from weft.bench.contest import BenchOptions
    from weft.bench.results import CaseResult


@dataclass(frozen=True)
class Pages:
    """Files that are asked for: a page, a picture, the table of growth."""

    html: Path | None = None
    picture: Path | None = None
    markdown: Path | None = None

    def write(self, results: list[CaseResult], machine: dict[str, Any]) -> None:
        """Write the files that were asked for."""
        if self.html is not None or self.picture is not None:
            from weft.bench.reporting.page import draw_ratios, write_page

            if self.html is not None:
                write_page(results, machine, self.html)
            if self.picture is not None:
                draw_ratios(results, self.picture)
        if self.markdown is not None:
            from weft.bench.growth.page import write_growth

            write_growth(results, machine, self.markdown)


@app.command()
def bench(
    cases: CaseNames = None,
    peers: PeerNames = None,
    size: Sizes = [],  # noqa: B006
    rounds: Rounds = 9,
    seconds: Seconds = 1.0,
    threads: Threads = 0,
    compiled: Compiled = False,
    precision: Precision = "float32",
    quick: Quick = False,
    html: Html = None,
    picture: PictureFile = None,
    markdown: Markdown = None,
    results: Results = [],  # noqa: B006
    largest: Largest = None,
    data: DataFolder = None,
    runs: RunsFolder = Path("runs/bench"),
    minutes: Minutes = None,
    seeds: Seeds = "0",
    again: Again = False,
    url: ServerUrl = None,
    as_json: AsJson = False,
) -> None:
    """Measure speed against other libraries, in the same run.

    Each contestant is a process of its own with equal threads; contestants are checked to compute the same, then take
    turns. Shown are medians and quartiles, the ratio to the fastest peer (median and range over rounds), and the share
    of what the machine allows. Where other programs took part of the machine, or times spread, no ratio is given.

    \b
    Examples:
      weft bench                              all cases
      weft bench train --size 4x128
      weft bench decode prefill --peers transformers --json
      weft bench train decode --html bench.html --picture bench.svg
      weft bench --results a.json --results b.json --picture bench.svg
      weft bench growth --markdown growth.md
      weft bench --results text.json --results others.json --markdown growth.md
      weft bench quality --data data --size sst2 --seeds 0,1,2
    """
    from weft.bench.contest import BenchOptions

    if results and not cases:
        show_results(results, as_json, Pages(html, picture, markdown))
        return
    if not cases:
        list_cases(as_json)
        return
    options = BenchOptions(
        peers=None if peers is None else tuple(name.strip() for name in peers.split(",") if name.strip()),
        rounds=2 if quick else rounds,
        seconds=0.0 if quick else seconds,
        threads=threads or os.cpu_count() or 1,
        sizes=tuple(size),
        quick=quick,
        compiled=compiled,
        precision=precision,
        data=None if data is None else str(data),
        out=str(runs),
        minutes=minutes,
        seeds=read_seeds(seeds),
        again=again,
        largest=largest,
        url=url,
    )
    expect_sensible(options)
    if markdown is not None and "growth" not in cases:
        raise WeftError("--markdown writes the table of growth: name that case too")
    run_cases(cases, options, as_json, Pages(html, picture, markdown))


def read_seeds(text: str) -> tuple[int, ...]:
    """`0,1,2` as numbers."""
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise WeftError(f"{text!r} are no seeds: give whole numbers, such as 0,1,2") from None


def expect_sensible(options: BenchOptions) -> None:
    """Refuse numbers that measure nothing, before anything runs."""
    from weft.bench.peers import choose_peers

    if options.rounds < 1 or options.seconds < 0 or options.threads < 1:
        raise WeftError(
            f"{options.rounds} rounds of {options.seconds:g} s with {options.threads} threads measure nothing: "
            "give at least 1 round, 0 seconds and 1 thread"
        )
    if options.precision not in ("float32", "bf16"):
        raise WeftError(f"there is no precision {options.precision!r}: choose float32 or bf16")
    choose_peers(options.peers, ())


def list_cases(as_json: bool) -> None:
    """One line per case."""
    from weft.bench.registry import CASES
    from weft.cli.terminal import print_json

    if as_json:
        print_json(CASES)
        return
    for name, summary in CASES.items():
        print(f"{name:<10} {summary}")
    print("\nMeasure one: weft bench train")


def show_results(files: list[Path], as_json: bool, pages: Pages) -> None:
    """Print and draw results of earlier runs."""
    from weft.bench.reporting.saved import read_results, results_tree
    from weft.bench.reporting.text import case_text
    from weft.cli.terminal import print_json

    found = [read_results(path) for path in files]
    cases, machine = [case for some, _ in found for case in some], found[-1][1]
    if as_json:
        print_json(results_tree(cases, machine))
    else:
        print("\n\n".join(map(case_text, cases)))
    pages.write(cases, machine)


@contextmanager
def ended_as_by_ctrl_c() -> Iterator[None]:
    """Inside, a request to end (SIGTERM, as from `timeout`) stops the measuring as Ctrl-C does: results are printed."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def run_cases(cases: list[str], options: BenchOptions, as_json: bool, pages: Pages) -> None:
    """Measure the cases one after the other, print or write them; Ctrl-C prints what was measured."""
    from weft.bench.machine import describe_machine
    from weft.bench.registry import CASES, run_case
    from weft.bench.reporting.saved import results_tree
    from weft.bench.reporting.text import case_text
    from weft.cli.terminal import console, print_json

    for name in cases:
        if name not in CASES:
            raise WeftError(f"there is no case {name!r}: choose from {', '.join(CASES)}")
    machine = describe_machine(options.threads)
    out, results = console(to_stderr=True), []
    for name in cases:
        with ended_as_by_ctrl_c():
            results.append(run_case(name, options, lambda line: out.print(line, style="dim", soft_wrap=True)))
        if not as_json:
            print(case_text(results[-1]), flush=True)
        if results[-1].interrupted:
            break
    if as_json:
        print_json(results_tree(results, machine))
    else:
        print("\n" + ", ".join(f"{name} {value}" for name, value in machine.items() if name != "versions"))
    pages.write(results, machine)
    if results[-1].interrupted:
        raise typer.Exit(INTERRUPTED)
