"""Dropout over processes: other masks for other tokens, the same where all compute the same, repeatable."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from cases import write_data
from test_same_numbers import losses

HERE = Path(__file__).parent


@pytest.mark.parallel
def test_masks_differ_between_shares_and_agree_on_what_is_replicated(tmp_path: Path) -> None:
    write_data(tmp_path)
    command = ["-m", "torch.distributed.run", "--nproc-per-node", "4", str(HERE / "check_dropout.py"), str(tmp_path)]
    environment = os.environ | {"WEFT_CACHE": str(tmp_path / "cache"), "OMP_NUM_THREADS": "1"}
    found = subprocess.run(
        [sys.executable, *command], env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert found.returncode == 0, found.stderr[-3000:]
    ranks = [json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in range(4)]
    shapes = [[tuple(shape) for shape, _ in rank["drawn"]] for rank in ranks]
    # Draws 0 and 7, the first of two steps, are of whole texts of 18 tokens; inside of blocks of stretches of 9, or of
    # all tokens with half of the hidden units.
    assert shapes[0] == shapes[1] and shapes[0][0][1] == 18 and shapes[0][1][1] == 9
    for here in range(9):
        first, second, third, fourth = (rank["drawn"][here][1] for rank in ranks)
        assert first != third and second != fourth, "data ranks draw alike"
        assert (first == second) == (third == fourth) == (here in (0, 7)), f"tensor ranks at draw {here}"
    # Ranks 0 and 1 hold one model together, with one half of FSDP's shards: what both hold is the same to the bit.
    assert len(ranks[0]["kept"]) > 4
    assert ranks[0]["kept"] == ranks[1]["kept"] and ranks[2]["kept"] == ranks[3]["kept"]
    assert losses(tmp_path / "run0") == losses(tmp_path / "run1")
