"""A contest: contestants are made, checked to compute the same, warmed up, and take turns in an order that rotates."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from weft.bench.contest import BenchOptions, Contest, Entry
from weft.bench.results import CaseResult, ContestResult, ResultTable, Standing, disagreement
from weft.bench.running.disturbance import MOST_OTHERS, busy_seconds, cores_of_others
from weft.bench.running.process import ContestantError, ContestantProcess, processor_seconds_by_session
from weft.foundation.errors import WeftError

SHORTEST = 0.25  # seconds of a turn from which the system's count of processor time, in hundredths, says anything
PAUSE = 0.05  # seconds before each turn, in which the threads of the one before fall asleep
MOST_CALLS = 10_000  # per turn
MACHINE = "the machine"
MEMORY = "memory"
Report = Callable[[str], None]


class Turns:
    """The processes of a contest, and what each has shown so far."""

    def __init__(self, contest: Contest, options: BenchOptions, report: Report = lambda _: None) -> None:
        self.contest, self.options, self.report = contest, options, report
        entries = list(contest.entries)
        if contest.limits:
            arguments = {"shapes": [list(shape) for shape in contest.shapes], "quick": options.quick}
            entries.append(Entry(MACHINE, "weft.bench.running.machine_limits:measure_limits", arguments))
        self.standings = [Standing(entry, entry.cost or contest.cost, contest.amount) for entry in entries]
        self.processes: dict[str, ContestantProcess] = {}
        self.calls: dict[str, int] = {}

    def hold(self) -> ContestResult:
        """All turns; Ctrl-C ends them early, with what was measured until then."""
        interrupted = False
        try:
            self._make()
            self._check()
            self._warm()
            self._take_rounds()
        except KeyboardInterrupt:
            interrupted = True
        finally:
            for process in self.processes.values():
                process.end()
        return ContestResult(self.contest, self._shown(), self._limits(), interrupted)

    def _shown(self) -> list[Standing]:
        """The contestants' standings, cut to the rounds that all have taken."""
        shown = [one for one in self.standings if one.name != MACHINE]
        complete = min((len(one.seconds) for one in shown if not one.failure), default=0)
        for one in shown:
            del one.seconds[complete:], one.others[complete:], one.waiting[complete:], one.values[complete:]
            one.values = [values for values in one.values if values]
        return shown

    def _limits(self) -> dict[str, float]:
        """The best of each of the machine's limits over all rounds."""
        rounds = [values for one in self.standings if one.name == MACHINE for values in one.values]
        names = dict.fromkeys(name for values in rounds for name in values)
        return {name: max(values[name] for values in rounds if name in values) for name in names}

    @property
    def running(self) -> list[Standing]:
        """Those that have not failed."""
        return [one for one in self.standings if not one.failure]

    def _try(self, standing: Standing, do: Callable[[ContestantProcess], Any]) -> Any:
        """What a contestant's process answers; None if it fails, which ends it."""
        process = self.processes[standing.name]
        try:
            return do(process)
        except ContestantError as error:
            standing.failure = str(error)
            process.end()
            self.report(f"{self.contest.name}: {standing.name} failed: {error}")
            return None

    def _make(self) -> None:
        """All at once: what is slow about it is mostly the loading of libraries."""
        self.report(f"{self.contest.name}: making {', '.join(one.name for one in self.standings)}")
        for standing in self.standings:
            self.processes[standing.name] = ContestantProcess(standing.entry, self.options.threads)
            self._try(standing, ContestantProcess.begin)
        for standing in self.running:
            self._try(standing, ContestantProcess.hear)

    def _check(self) -> None:
        """Numbers of all must agree with those of the first that gives them; who differs is out."""
        for standing in self.running:
            answer = self._try(standing, lambda process: process.ask({"do": "check"}))
            standing.numbers = {} if answer is None else answer["numbers"]
        agreed: list[Standing] = []
        for standing in self.running:
            found = (disagreement(standing, first, self.contest.tolerance) for first in agreed)
            standing.failure = next(filter(None, found), "")
            if standing.failure:
                self.processes[standing.name].end()
                self.report(f"{self.contest.name}: {standing.name} {standing.failure}")
            else:
                agreed.append(standing)

    def _warm(self) -> None:
        """Call each twice, and choose how many calls make a turn of the seconds asked for."""
        for standing in self.running:
            self.report(f"{self.contest.name}: warming up {standing.name}")
            for _ in range(1 if self.options.quick else 2):
                answer = self._try(standing, lambda process: process.ask({"do": "turn", "calls": 1}))
                if answer is None:
                    break
                wanted = math.ceil(self.options.seconds / max(answer["seconds"], 1e-9))
                self.calls[standing.name] = 1 if standing.name == MACHINE else max(1, min(MOST_CALLS, wanted))

    def _take_rounds(self) -> None:
        """The rounds asked for; one that others disturbed is taken again, as often as there are rounds."""
        wanted, again = self.options.rounds, self.options.rounds
        number = 0
        while wanted:
            self.report(f"{self.contest.name}: round {number + 1}, {wanted - 1} more to come")
            self._round(number)
            number += 1
            if again and any(one.last_others > MOST_OTHERS for one in self.running):
                again -= 1
                for one in self.running:
                    one.drop_last()
            else:
                wanted -= 1

    def _round(self, number: int) -> None:
        order = self.standings[number % len(self.standings) :] + self.standings[: number % len(self.standings)]
        for standing in order:
            if not standing.failure:
                self._turn(standing)

    def _turn(self, standing: Standing) -> None:
        time.sleep(PAUSE)
        calls = self.calls[standing.name]
        spent, busy = processor_seconds_by_session(), busy_seconds()
        own, start = time.process_time(), time.perf_counter()
        answer = self._try(standing, lambda process: process.ask({"do": "turn", "calls": calls}))
        seconds, now = time.perf_counter() - start, busy_seconds()
        if answer is None:
            return
        later, own = processor_seconds_by_session(), time.process_time() - own
        used = {
            name: later.get(process.number, 0.0) - spent.get(process.number, 0.0)
            for name, process in self.processes.items()
        }
        waiting = sum(cores for name, cores in used.items() if name != standing.name)
        known = None if busy is None or now is None or seconds < SHORTEST else now - busy
        standing.seconds.append(answer["seconds"] / calls)
        standing.waiting.append(waiting / seconds if seconds >= SHORTEST else 0.0)
        standing.others.append(cores_of_others(known, sum(used.values()) + own, seconds))
        standing.values.append(answer["values"])


def hold_contest(contest: Contest, options: BenchOptions, report: Report = lambda _: None) -> ContestResult:
    """Measure one contest."""
    return Turns(contest, options, report).hold()


def hold_contests(
    case: str, contests: Sequence[Contest], missing: tuple[str, ...], options: BenchOptions, report: Report
) -> CaseResult:
    """Measure the contests of a case, those of the sizes asked for; Ctrl-C leaves out the rest."""
    result = CaseResult(case, missing=missing)
    for contest in chosen(contests, options.sizes):
        result.contests.append(hold_contest(contest, options, report))
        if result.contests[-1].interrupted:
            result.interrupted = True
            break
    return result


def hold_contests_and_memory(
    case: str,
    contests: Sequence[Contest],
    missing: tuple[str, ...],
    options: BenchOptions,
    report: Report,
    make_table: Callable[[BenchOptions, Report], ResultTable],
) -> CaseResult:
    """Contests, then a table of memory, which the size "memory" asks for."""
    others = tuple(size for size in options.sizes if size != MEMORY)
    wanted = contests if others or not options.sizes else ()
    result = hold_contests(case, wanted, missing, replace(options, sizes=others), report)
    if (not options.sizes or MEMORY in options.sizes) and not result.interrupted:
        try:
            result.tables.append(make_table(options, report))
        except KeyboardInterrupt:
            result.interrupted = True
    return result


def chosen(contests: Sequence[Contest], sizes: Sequence[str]) -> list[Contest]:
    """The contests with one of these words in their names; all if there are none."""
    for size in sizes:
        if not any(size in contest.name for contest in contests):
            raise WeftError(f"no contest is named {size!r}: choose from {', '.join(one.name for one in contests)}")
    return [one for one in contests if not sizes or any(size in one.name for size in sizes)]


def call_once(entry: Entry, threads: int, report: Report = lambda _: None) -> dict[str, Any]:
    """The values of one call of a contestant alone in its process, with its seconds; or why it failed."""
    report(f"{entry.name}: one call")
    process = ContestantProcess(entry, threads)
    try:
        process.begin()
        process.hear()
        answer = process.ask({"do": "turn", "calls": 1})
        return {"seconds": answer["seconds"], **answer["values"]}
    except ContestantError as error:
        return {"failure": str(error)}
    finally:
        process.end()
