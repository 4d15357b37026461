"""A race over two processes: all take part in the steps of every size, and the first one decides for both."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file

from racing import write_book
from weft.checkpoints.run_folder import RunFolder
from weft.training.planning.plan import TrainingPlan

HERE = Path(__file__).parent


def train(folder: Path, out: str, processes: int | None) -> TrainingPlan:
    launcher = [] if processes is None else ["-m", "torch.distributed.run", "--nproc-per-node", str(processes)]
    command = [sys.executable, *launcher, str(HERE / "run_race.py"), str(folder), out]
    environment = os.environ | {"WEFT_CACHE": str(folder / "cache"), "OMP_NUM_THREADS": "1"}
    found = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert found.returncode == 0, found.stderr[-3000:]
    return TrainingPlan.from_tree(RunFolder(folder / out).read_plan())


def test_two_processes_race_as_one_does(tmp_path: Path) -> None:
    write_book(tmp_path)
    one, two = train(tmp_path, "one", None), train(tmp_path, "two", 2)
    assert one.race is not None and two.race is not None and len(one.race.entrants) == 3
    assert one.race.winner == two.race.winner and one.race.entrants[one.race.winner].width != 24
    for first, second in zip(one.race.entrants, two.race.entrants, strict=True):
        assert first.name == second.name and len(first.points) == len(second.points) > 0
        assert [p.loss for p in first.points] == pytest.approx([p.loss for p in second.points], abs=1e-8, rel=0)
        assert first.extrapolated == pytest.approx(second.extrapolated, abs=1e-6)
    assert [(made.at, made.steps) for made in one.revisions] == [(made.at, made.steps) for made in two.revisions]
    states = [load_file(RunFolder(tmp_path / name).newest_state()) for name in ("one", "two")]
    assert states[0].keys() == states[1].keys() and one.last == two.last
    for key, tensor in states[0].items():
        assert (tensor - states[1][key]).abs().max() < 1e-4, key
    assert not any((tmp_path / name / ".race").exists() for name in ("one", "two"))
