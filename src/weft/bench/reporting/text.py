"""Results as text: a table per contest with medians and quartiles, ratios in words, plain tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from weft.bench.contest import Contest
from weft.bench.results import CaseResult, ContestResult, ResultTable, Standing
from weft.bench.running.disturbance import quartiles

HEADINGS = ("contestant", "median", "quartiles", "rate", "of the limit", "")


def aligned(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in plain text: the first and the last column to the left, the others to the right."""
    lines = [list(headings), *(list(row) for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(headings))]
    left = (0, len(headings) - 1 if headings[-1] == "" else 0)
    return "\n".join(
        "  ".join(
            cell.ljust(width) if place in left else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def in_seconds(seconds: float) -> str:
    """A time with its unit: 1.23 s, 45.6 ms, 789 us."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns"


def standing_cells(standing: Standing, contest: Contest, limits: dict[str, float]) -> tuple[str, ...]:
    """A row of a contest's table; who failed or was disturbed has reasons in place of numbers."""
    if standing.failure:
        return (standing.name, "", "", "", "", f"failed: {standing.failure}")
    if not standing.seconds:
        return (standing.name, "", "", "", "", "not measured")
    if standing.disturbed:
        return (standing.name, "", "", "", "", f"disturbed: {', '.join(standing.disturbed)}")
    low, median, high = quartiles(standing.seconds)
    rate = f"{standing.rate:,.4g} {contest.unit}/s" if contest.unit != "s" else ""
    share = standing.share(limits)
    reached = "" if share is None else f"{share[1]:.0%} of {share[0]}".replace("%", " %")
    return (standing.name, in_seconds(median), f"{in_seconds(low)} to {in_seconds(high)}", rate, reached, "")


def contest_lines(result: ContestResult) -> Iterator[str]:
    """A contest's table, its ratios, the machine's limits and notes."""
    yield result.contest.name
    yield aligned(HEADINGS, (standing_cells(one, result.contest, result.limits) for one in result.standings))
    for ratio in result.ratios():
        yield ratio.words
    main = [f"{value:,.4g} {name.rpartition(' ')[2]} {name.rpartition(' ')[0]}" for name, value in limits_of(result)]
    if main:
        yield f"the machine, in the same run: {', '.join(main)}"
    yield from (f"note: {note}" for note in result.contest.notes)
    if result.interrupted:
        yield "stopped: what was measured until then"


def limits_of(result: ContestResult) -> list[tuple[str, float]]:
    """The machine's limits without those of single products."""
    return [(name, value) for name, value in result.limits.items() if " x " not in name]


def table_lines(table: ResultTable) -> Iterator[str]:
    """A plain table."""
    yield table.title
    yield aligned(table.headings, table.rows)
    yield from (f"note: {note}" for note in table.notes)


def case_text(result: CaseResult) -> str:
    """All of a case."""
    blocks = ["\n".join(contest_lines(contest)) for contest in result.contests]
    blocks += ["\n".join(table_lines(table)) for table in result.tables]
    blocks += ["\n".join(result.missing)] if result.missing else []
    return "\n\n".join(blocks)
