"""Results as `--json` prints them, and read again: to draw one picture of several runs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from weft.bench.contest import Contest, Cost, Entry
from weft.bench.reporting.text import limits_of
from weft.bench.results import CaseResult, ContestResult, ResultTable, Standing
from weft.foundation.errors import WeftError


def results_tree(results: Sequence[CaseResult], machine: dict[str, Any]) -> dict[str, Any]:
    """What `--json` prints: a flat row per contestant, the machine's limits, and all that was measured, by case."""
    return {
        "results": [row for result in results for contest in result.contests for row in _rows(result.case, contest)],
        "limits": _best_limits(results),
        "machine": machine,
        "cases": [result.to_tree() for result in results],
    }


def _rows(case: str, result: ContestResult) -> Iterator[dict[str, Any]]:
    """Value and ratio are None where a contestant failed or was disturbed; `reason` says why.

    The ratio is to the fastest peer, or to the contest's reference, which have none themselves.
    """
    ratios = {ratio.name: ratio for ratio in result.ratios()}
    seconds = result.contest.unit == "s"
    for one in result.standings:
        sound, ratio = bool(one.seconds) and not one.failure and not one.disturbed, ratios.get(one.name)
        yield {
            "case": case,
            "contest": result.contest.name,
            "contestant": one.name,
            "value": None if not sound else one.median if seconds else one.rate,
            "unit": "s" if seconds else f"{result.contest.unit}/s",
            "ratio": None if ratio is None else ratio.value,
            "against": None if ratio is None else ratio.against,
            "reason": one.failure or ", ".join(one.disturbed) or None,
        }


def _best_limits(results: Sequence[CaseResult]) -> dict[str, float]:
    """The best of each of the machine's limits over all contests; those of single products stay with their contest."""
    found: dict[str, float] = {}
    for result in results:
        for contest in result.contests:
            for name, value in limits_of(contest):
                found[name] = max(value, found.get(name, value))
    return found


def read_results(path: Path) -> tuple[list[CaseResult], dict[str, Any]]:
    """The cases of a file, and the machine that they were measured on."""
    try:
        tree = json.loads(path.read_text(encoding="utf-8"))
        return [_case(one) for one in tree["cases"]], tree["machine"]
    except (ValueError, KeyError, TypeError) as error:
        raise WeftError(f"{path} holds no results of `weft bench --json`: {type(error).__name__} {error}") from None


def _case(tree: dict[str, Any]) -> CaseResult:
    tables = [_table(one) for one in tree["tables"]]
    contests = [_contest(one) for one in tree["contests"]]
    return CaseResult(tree["case"], contests, tables, tuple(tree["missing"]), tree["interrupted"])


def _contest(tree: dict[str, Any]) -> ContestResult:
    contest = Contest(
        tree["contest"], (), tree["unit"], tree["amount"], tree["tolerance"], reference=tree["reference"],
        notes=tuple(tree["notes"]),
    )  # fmt: skip
    standings = [_standing(one, tree["amount"]) for one in tree["contestants"]]
    return ContestResult(contest, standings, tree["limits"], tree["interrupted"])


def _standing(tree: dict[str, Any], amount: float) -> Standing:
    entry = Entry(tree["name"], "", peer=tree["peer"])
    return Standing(
        entry, Cost(**tree["cost"]), amount, tree["seconds"], tree["others"], tree["waiting"],
        tree.get("values", []), tree["numbers"], tree["failure"] or "", tree["dropped"],
    )  # fmt: skip


def _table(tree: dict[str, Any]) -> ResultTable:
    rows = tuple(tuple(row) for row in tree["cells"])
    return ResultTable(tree["title"], tuple(tree["headings"]), rows, tuple(tree["notes"]), tuple(tree["rows"]))
