"""One and several processes take the same steps: losses agree to 1e-10 in float64, whatever the layout."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from cases import LAYOUTS, STEPS, Case, cases, write_cases, write_data
from safetensors.torch import load_file

HERE = Path(__file__).parent


def run_all(folder: Path, processes: int | None) -> None:
    """All cases of `processes` processes, by torchrun; None: each in one process."""
    launcher = [] if processes is None else ["-m", "torch.distributed.run", "--nproc-per-node", str(processes)]
    command = [sys.executable, *launcher, str(HERE / "run_cases.py"), str(folder)]
    environment = os.environ | {"WEFT_CACHE": str(folder / "cache"), "OMP_NUM_THREADS": "1"}
    found = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=1500, check=False)
    failures = "\n".join(file.read_text() for file in sorted(folder.glob("failed-*"))[:1])
    assert found.returncode == 0, f"{failures}\n{found.stderr[-3000:]}"


def losses(run: Path) -> tuple[list[float], list[float]]:
    """(training loss of each step, validation losses)."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [row["loss"] for row in rows if "loss" in row], [row["validation"] for row in rows if "validation" in row]


def expect_same(one: Path, many: Path) -> None:
    """The same losses, and at the end the same run folder."""
    (steps, held_out), (others, others_held_out) = losses(one), losses(many)
    assert len(steps) == len(others) == STEPS and len(held_out) == len(others_held_out) > 1
    assert steps == pytest.approx(others, abs=1e-10, rel=0)
    assert held_out == pytest.approx(others_held_out, abs=1e-10, rel=0)
    files = {file.relative_to(one) for file in one.rglob("*") if file.is_file()}
    assert files == {file.relative_to(many) for file in many.rglob("*") if file.is_file() and file.name != ".launch"}
    for name in ("model.safetensors", f"training/state-{STEPS:08d}.safetensors"):
        first, second = load_file(one / name), load_file(many / name)
        assert first.keys() == second.keys()
        for key, tensor in first.items():
            assert (tensor - second[key]).abs().max() < 1e-8, key


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every case, trained by one process and by several."""
    folder = tmp_path_factory.mktemp("trained")
    write_data(folder)
    write_cases(folder / "cases.json", cases())
    run_all(folder, None)
    for processes in LAYOUTS:
        run_all(folder, processes)
    return folder


@pytest.mark.parallel
@pytest.mark.parametrize("case", cases(), ids=lambda case: case.name)
def test_losses_of_several_processes_are_those_of_one(trained: Path, case: Case) -> None:
    expect_same(trained / "one" / case.name, trained / "many" / case.name)
