"""Results that were printed by `--json`, read again: to draw one picture of several runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from weft.bench.contest import Contest, Cost, Entry
from weft.bench.results import CaseResult, ContestResult, ResultTable, Standing
from weft.foundation.errors import WeftError


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
