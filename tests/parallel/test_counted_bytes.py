"""What `weft plan` says that a step communicates is what is counted in one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from cases import write_data

from weft.models.build import build, read_spec
from weft.models.cluster.communication import KINDS, communication
from weft.models.cluster.device_memory import SIZES
from weft.models.cluster.device_table import device_table, read_cluster
from weft.models.cluster.layouts import Layout, Pieces
from weft.models.cluster.training_profile import training_profile
from weft.training.parallel.tensor_splits import ONCE, PARTIAL, split_weights

HERE = Path(__file__).parent
LAYOUTS = {"ddp": Layout(2, 1, 1), "fsdp": Layout(1, 2, 1), "tp=2": Layout(1, 1, 2)}
SEQUENCES, LENGTH, NUMBER = 4, 18, 4


@pytest.mark.parallel
@pytest.mark.parametrize("layout", LAYOUTS)
def test_planned_bytes_are_counted_bytes(tmp_path: Path, layout: str) -> None:
    write_data(tmp_path)
    words = [
        "-m",
        "torch.distributed.run",
        "--nproc-per-node",
        "2",
        str(HERE / "count_bytes.py"),
        str(tmp_path),
        layout,
    ]
    environment = os.environ | {"WEFT_CACHE": str(tmp_path / "cache"), "OMP_NUM_THREADS": "1"}
    found = subprocess.run(
        [sys.executable, *words, str(tmp_path), layout],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert found.returncode == 0, found.stderr[-3000:]
    counted = json.loads((tmp_path / f"{layout}.json").read_text())
    spec = read_spec(json.loads((tmp_path / layout / "spec.json").read_text())["model"])
    own = LAYOUTS[layout]
    here = SEQUENCES // own.data_ranks
    planned = dict.fromkeys(KINDS, 0)
    cluster = read_cluster("2xH100", device_table())
    for one in communication(
        training_profile(spec, LENGTH), own, SIZES["fp32"], cluster, Pieces(here, here), recompute=False
    ):
        planned[one.kind] += one.payload
    if own.tp > 1:  # what the plan says that it leaves out
        splits, shapes = split_weights(build(spec, device="meta"), 2), build(spec, device="meta").state_dict()
        shared = sum(shapes[name].numel() for name, split in splits.items() if split in (PARTIAL, ONCE))
        planned["all-reduce"] += NUMBER * (shared + 3 * SEQUENCES * LENGTH)
    assert {kind: counted.get(kind, 0) for kind in KINDS} == planned
