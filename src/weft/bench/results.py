"""What was measured: the standings of a contest, ratios over paired rounds, tables, and all of it as plain JSON."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from weft.bench.contest import Contest, Cost, Entry
from weft.bench.running.disturbance import find_disturbances, quartiles


@dataclass
class Standing:
    """One contestant: seconds per call in each round, cores that others used meanwhile, and what went wrong, if so."""

    entry: Entry
    cost: Cost
    amount: float = 1.0
    seconds: list[float] = field(default_factory=list)
    others: list[float | None] = field(default_factory=list)
    waiting: list[float] = field(default_factory=list)
    values: list[dict[str, float]] = field(default_factory=list)
    numbers: dict[str, list[float]] = field(default_factory=dict)
    failure: str = ""
    dropped: int = 0  # turns in rounds that others disturbed, which were taken again

    @property
    def name(self) -> str:
        return self.entry.name

    @property
    def disturbed(self) -> tuple[str, ...]:
        """Why its times are no result."""
        return find_disturbances(self.seconds, self.others, self.waiting)

    @property
    def last_others(self) -> float:
        """Cores that others used during its last turn, 0 if that is not known."""
        return (self.others[-1] if self.others else None) or 0.0

    def drop_last(self) -> None:
        """Forget the last turn, because others disturbed the round."""
        self.dropped += 1
        del self.seconds[-1:], self.others[-1:], self.waiting[-1:], self.values[-1:]

    @property
    def median(self) -> float:
        """Seconds per call."""
        return statistics.median(self.seconds)

    @property
    def rate(self) -> float:
        """Units per second, by the median."""
        return self.amount / self.median

    def share(self, limits: Mapping[str, float]) -> tuple[str, float] | None:
        """(limit, share of it that is reached), for what the cost of a call names."""
        for name, cost in (
            ("float32 GFLOP/s", self.cost.flops),
            ("memory GB/s", self.cost.bytes_read),
            ("int8 GOP/s", self.cost.int8_operations),
        ):
            if cost and limits.get(name) and self.seconds:
                return name, cost / self.median / 1e9 / limits[name]
        return None

    def to_tree(self, limits: Mapping[str, float]) -> dict[str, Any]:
        """As plain JSON; times stay where they are disturbed, with the reasons beside them."""
        tree: dict[str, Any] = {"name": self.name, "peer": self.entry.peer, "failure": self.failure or None}
        tree |= {"disturbed": list(self.disturbed), "seconds": self.seconds, "cost": asdict(self.cost)}
        tree |= {"others": self.others, "dropped": self.dropped, "waiting": self.waiting, "numbers": self.numbers}
        if self.values:
            tree["values"] = self.values
        if self.seconds:
            share = self.share(limits)
            tree |= {"median": self.median, "quartiles": list(quartiles(self.seconds)[::2]), "rate": self.rate}
            tree["share"] = None if share is None else {"of": share[0], "value": share[1]}
        return tree


@dataclass(frozen=True)
class Ratio:
    """How many times as fast `name` is as `against`: the median over rounds of the same round's times, and the range.

    Without numbers where a contestant was disturbed or failed; `reason` says why.
    """

    name: str
    against: str
    value: float | None = None
    low: float | None = None
    high: float | None = None
    reason: str = ""

    @property
    def words(self) -> str:
        """One line for people."""
        if self.value is None:
            return f"{self.name} against {self.against}: no ratio, {self.reason}"
        return f"{self.name} is {self.value:.2f} x as fast as {self.against} ({self.low:.2f} to {self.high:.2f})"


def paired_ratio(own: Standing, other: Standing) -> Ratio:
    """The ratio of two standings: seconds of the other over seconds of its own, round by round."""
    for standing in (own, other):
        if standing.failure or not standing.seconds:
            return Ratio(own.name, other.name, reason=f"{standing.name}: {standing.failure or 'not measured'}")
        if standing.disturbed:
            return Ratio(own.name, other.name, reason=f"{standing.name} disturbed: {', '.join(standing.disturbed)}")
    found = sorted(b / a for a, b in zip(own.seconds, other.seconds, strict=False))
    return Ratio(own.name, other.name, statistics.median(found), found[0], found[-1])


@dataclass
class ContestResult:
    """The standings of a contest, the machine's limits in the same run, and the ratios."""

    contest: Contest
    standings: list[Standing]
    limits: dict[str, float] = field(default_factory=dict)
    interrupted: bool = False

    def best_peer(self) -> Standing | None:
        """The fastest peer that was measured, by its median."""
        peers = [one for one in self.standings if one.entry.peer is not None and one.seconds and not one.failure]
        return min(peers, key=lambda one: one.median, default=None)

    def ratios(self) -> list[Ratio]:
        """Weft's entries against the best peer, or all against the reference."""
        if self.contest.reference is not None:
            first = next(one for one in self.standings if one.name == self.contest.reference)
            return [paired_ratio(one, first) for one in self.standings if one is not first]
        best = self.best_peer()
        if best is None:
            return []
        return [paired_ratio(one, best) for one in self.standings if one.entry.peer is None]

    def to_tree(self) -> dict[str, Any]:
        """As plain JSON."""
        return {
            "contest": self.contest.name,
            "unit": self.contest.unit,
            "tolerance": self.contest.tolerance,
            "amount": self.contest.amount,
            "reference": self.contest.reference,
            "limits": self.limits,
            "contestants": [one.to_tree(self.limits) for one in self.standings],
            "ratios": [asdict(ratio) for ratio in self.ratios()],
            "notes": list(self.contest.notes),
            "interrupted": self.interrupted,
        }


@dataclass(frozen=True)
class ResultTable:
    """What is no contest: a title, headings and rows of cells, and notes below them."""

    title: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()
    values: tuple[dict[str, Any], ...] = ()

    def to_tree(self) -> dict[str, Any]:
        """As plain JSON: the numbers behind the cells where there are such, else the cells."""
        cells: list[dict[str, Any]] = [dict(zip(self.headings, row, strict=True)) for row in self.rows]
        tree = {"title": self.title, "rows": list(self.values) or cells, "notes": list(self.notes)}
        return tree | {"headings": list(self.headings), "cells": [list(row) for row in self.rows]}


@dataclass
class CaseResult:
    """What one case gave: contests, tables, peers that are missing."""

    case: str
    contests: list[ContestResult] = field(default_factory=list)
    tables: list[ResultTable] = field(default_factory=list)
    missing: tuple[str, ...] = ()
    interrupted: bool = False

    def to_tree(self) -> dict[str, Any]:
        """As plain JSON."""
        return {
            "case": self.case,
            "contests": [contest.to_tree() for contest in self.contests],
            "tables": [table.to_tree() for table in self.tables],
            "missing": list(self.missing),
            "interrupted": self.interrupted,
        }


def disagreement(standing: Standing, first: Standing, tolerance: float) -> str:
    """Why two contestants do not compute the same, in words; empty if they do."""
    for name, numbers in standing.numbers.items():
        wanted = first.numbers.get(name)
        if wanted is None:
            continue
        if len(numbers) != len(wanted):
            return f"computes something else: {len(numbers)} numbers for {name}, {first.name} {len(wanted)}"
        for a, b in zip(numbers, wanted, strict=True):
            if not math.isfinite(a) or abs(a - b) > tolerance * (1 + abs(b)):
                return f"computes something else: {name} {a:.6g}, {first.name} {b:.6g} (tolerance {tolerance:g})"
    return ""


def fit_exponent(sizes: Sequence[float], values: Sequence[float]) -> float:
    """p of the best fit value = c size^p: the slope of log value over log size, by least squares."""
    if len(sizes) < 2:
        return math.nan
    x, y = [math.log(size) for size in sizes], [math.log(value) for value in values]
    return statistics.linear_regression(x, y).slope
