"""A run begun by one process goes on with several, in any layout, and back: losses as if it had never stopped."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from cases import write_data
from run_stage import STEPS
from test_same_numbers import losses

HERE = Path(__file__).parent


def run_stage(folder: Path, out: Path, processes: int, layout: str, end: str = "end", step: int = 0) -> None:
    launcher = [] if processes == 1 else ["-m", "torch.distributed.run", "--nproc-per-node", str(processes)]
    words = [str(HERE / "run_stage.py"), str(folder), str(out), layout, end, str(step)]
    environment = os.environ | {"WEFT_CACHE": str(folder / "cache"), "OMP_NUM_THREADS": "1"}
    found = subprocess.run(
        [sys.executable, *launcher, *words], env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    stopped = end == "stop" and processes > 1  # torchrun passes on that its workers were stopped
    assert (found.returncode != 0) == (end == "kill" or stopped), found.stderr[-3000:]


def states(out: Path) -> list[str]:
    return sorted(path.name for path in (out / "training").iterdir())


@pytest.mark.parallel
def test_a_run_goes_on_with_any_number_of_processes_and_any_layout(tmp_path: Path) -> None:
    write_data(tmp_path)
    run_stage(tmp_path, tmp_path / "straight", 1, "ddp")
    out = tmp_path / "changing"
    run_stage(tmp_path, out, 1, "ddp", "stop", 4)
    assert states(out) == ["state-00000004.safetensors"]
    run_stage(tmp_path, out, 4, "fsdp,tp=2", "kill", 13)  # kept: the state after step 10, of four processes
    assert "state-00000010" in states(out)
    assert all(file.suffix in (".safetensors", ".json") for file in (out / "training/state-00000010").iterdir())
    run_stage(tmp_path, out, 2, "fsdp", "kill", 18)
    assert "state-00000015" in states(out)
    run_stage(tmp_path, out, 2, "tp=2", "kill", 23)
    run_stage(tmp_path, out, 3, "ddp", "stop", 27)
    run_stage(tmp_path, out, 2, "ddp", "kill", 33)
    run_stage(tmp_path, out, 1, "ddp")
    (steps, held_out), (others, others_held_out) = losses(tmp_path / "straight"), losses(out)
    assert len(steps) == len(others) == STEPS
    assert steps == pytest.approx(others, abs=1e-10, rel=0)
    assert held_out == pytest.approx(others_held_out, abs=1e-10, rel=0)
    assert states(out) == ["state-00000040.safetensors"]
