"""Every case of `weft bench` once, in tiny sizes: its contestants are made, agree, and take their turns."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from weft.bench.contest import BenchOptions
from weft.bench.registry import CASES, run_case

PEERS = {"train": ("plain",), "decode": ("transformers",), "prefill": ("llama.cpp",)}


@pytest.mark.parametrize("name", CASES)
def test_every_case_runs(name, tmp_path):
    options = BenchOptions(
        peers=PEERS.get(name), rounds=1, seconds=0.0, threads=1, quick=True, out=str(tmp_path / "runs")
    )
    found = run_case(name, options, lambda _: None)
    assert found.contests or found.tables
    for contest in found.contests:
        assert [(one.name, one.failure) for one in contest.standings if one.failure] == []
        assert all(len(one.seconds) == 1 for one in contest.standings)
    for table in found.tables:
        assert table.rows and all(len(row) == len(table.headings) for row in table.rows)
        assert not any("failure" in value for value in table.values), table.values
    json.dumps(found.to_tree())


def test_the_command_gives_one_json_value_and_a_page(tmp_path):
    page = tmp_path / "bench.html"
    words = ["startup", "--quick", "--json", "--html", str(page)]
    out = subprocess.run(
        [sys.executable, "-m", "weft", "bench", *words], capture_output=True, text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"}, check=True,
    )  # fmt: skip
    tree = json.loads(out.stdout)
    assert set(tree) == {"machine", "cases"} and tree["cases"][0]["case"] == "startup"
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")
