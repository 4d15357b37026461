"""A training of five minutes with its race, in no time: `python run_race.py FOLDER OUT`, alone or under torchrun."""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch

from racing import SECONDS, request, stage
from weft.training import loop
from weft.training.parallel.spread import ManyProcesses
from weft.training.reporting import Reporter
from weft.training.train import run_training

loop.REPORT_SECONDS = -1.0
WIDTHS = (16, 24, 40)


def main(folder: Path, out: str) -> None:
    torch.set_num_threads(1)
    SECONDS.update(dict.fromkeys(WIDTHS, 1.15))  # few steps
    machine = stage(setattr, WIDTHS, (24,))
    mean_loss = ManyProcesses.mean_loss

    def costly(self, *args):  # type: ignore[no-untyped-def]
        machine.work(0.3)
        return mean_loss(self, *args)

    ManyProcesses.mean_loss = costly  # type: ignore[method-assign]
    # Another process than the first has another clock, by which nothing is decided.
    machine.now = 1e4 * int(os.environ.get("RANK", "0"))
    changes = {"dropout": 0.0, "training.optimizer": "adamw"}  # Muon multiplies rounding
    run_training(request(folder, machine, out, minutes=5.0, changes=changes, timeout=60.0), Reporter())


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
